"""Renders `deploy/`: manifests by kustomize, and from them the templates of the Helm chart."""
