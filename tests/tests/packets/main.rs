//! Packets through the real programs in the real kernel, one at a time (`BPF_PROG_TEST_RUN`). Needs
//! root.

mod conversations;
mod icmp;
mod limits;
mod malformed;
mod odd;
mod oracle;
mod processors;
mod refusals;
mod scene;
mod tracing;
mod world;

use lb_oracle::service;
