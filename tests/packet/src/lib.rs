#![forbid(unsafe_code)]
//! Packets for tests, without any of the code under test. They are built from their meaning or
//! header by header, read back, and compared so that a difference names its field.

mod checksum;

mod header;
mod sctp;
mod transport;

mod packet;

mod diff;
mod read;

pub use self::{
    checksum::{internet_checksum, pseudo_header_sum, sum, transport_sum},
    diff::difference,
    header::{ARRIVED, ETHERNET, Extension, Fragment, Header},
    packet::{Body, Mac, Packet},
    read::Read,
    sctp::{Chunk, SCTP, chunk, crc32c, sctp},
    transport::{TCP, Tcp, UDP, icmp, icmp_number, tcp, tcp_flag, udp},
};
