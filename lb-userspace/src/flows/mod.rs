//! Flows (stand-in until the sweeper lands).
pub mod clock;
use std::{collections::BTreeSet, net::SocketAddr};
pub struct Sweeper;
impl Sweeper {
    pub fn start(
        _: &crate::datapath::Loaded,
        _: &crate::config::FlowTimeouts,
    ) -> anyhow::Result<Self> {
        Ok(Self)
    }
    pub fn clear_stale_udp(&self, _: u32, _: BTreeSet<SocketAddr>) {}
}
