"""All five kinds of jobs on real servers, three schedulers, one of them killed: `make demo-jobs`."""
