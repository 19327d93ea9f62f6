"""The untrusted side: runs inside the sandbox and knows nothing but its mailbox and its workspace."""
