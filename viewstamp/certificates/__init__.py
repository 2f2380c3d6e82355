"""Certificates of the processes of a cluster, which are renewed while they run.

pem                  times, names and kinds of keys in PEM certificates
pem_files            certificate, key and authority, as they were in their files last
certificate_watch    looks at the files again and again, and tells when a certificate ends
proven_names         what names prove, and the names of coordinators and services
clear_text           where bytes may go without encryption
"""
