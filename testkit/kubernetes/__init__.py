"""A real Kubernetes of three nodes on this machine, for tests of the manifests.

Each node is a network namespace with a containerd, a kubelet and a kube-proxy of its own. The
control plane is the released API server, controller manager and scheduler, built from their Go
modules by `make kubernetes`, with Debian's etcd.
"""
