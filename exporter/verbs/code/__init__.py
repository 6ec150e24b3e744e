"""Analysis of the machine code of RDMA providers: at which addresses of a file the functions of the data path are."""
