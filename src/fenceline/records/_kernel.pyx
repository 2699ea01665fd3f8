# cython: boundscheck=False, wraparound=False
