"""What the kubelet of this node tells."""
