"""What the gates and the side-by-side bench share: processes, origins, proxies, clients, figures.

Python's standard library only. Traffic goes to 127.0.0.1 and nowhere else.
"""
