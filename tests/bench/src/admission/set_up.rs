//! The set-ups that are compared.

use anyhow::Result;
use lb_tests::{Agent, Balanced};

use super::{haproxy, nftables, node_lb};

/// What stands between clients and the endpoint, and what it does about noisy clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SetUp {
    /// node-lb without admission.
    Nothing,
    /// node-lb, where connections wait for a seat and clients take turns.
    Queue,
    /// node-lb, where each client may have so many connections.
    Limit,
    /// nftables, which translates addresses and counts each source's tracked connections.
    NftCount,
    /// HAProxy, where connections wait for a place at the server, in the order in which they came.
    HaproxyQueue,
    /// The same, where connections of clients with many of them come after others.
    HaproxyPriority,
    /// HAProxy, where each client may have so many connections.
    HaproxyLimit,
}

impl SetUp {
    /// All, in the order of the tables.
    pub const ALL: [Self; 7] = [
        Self::Nothing,
        Self::Queue,
        Self::Limit,
        Self::NftCount,
        Self::HaproxyQueue,
        Self::HaproxyPriority,
        Self::HaproxyLimit,
    ];

    /// Its name in tables and plots.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "no admission",
            Self::Queue => "node-lb queue",
            Self::Limit => "node-lb limit",
            Self::NftCount => "nft ct count",
            Self::HaproxyQueue => "HAProxy queue",
            Self::HaproxyPriority => "HAProxy prio",
            Self::HaproxyLimit => "HAProxy limit",
        }
    }

    /// Its key in the JSON.
    pub fn key(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Queue => "node-lb-queue",
            Self::Limit => "node-lb-limit",
            Self::NftCount => "nft-ct-count",
            Self::HaproxyQueue => "haproxy-queue",
            Self::HaproxyPriority => "haproxy-priority",
            Self::HaproxyLimit => "haproxy-limit",
        }
    }

    /// Starts it in a lab without agents. Returns the process of HAProxy.
    ///
    /// # Errors
    ///
    /// If it does not get ready.
    pub fn start(self, lab: &mut Balanced, xdp: &str) -> Result<Option<Agent>> {
        use haproxy::Policy;
        match self {
            Self::Nothing => node_lb::start(lab, xdp, None)?,
            Self::Queue => node_lb::start(lab, xdp, Some(node_lb::Response::Queue))?,
            Self::Limit => node_lb::start(lab, xdp, Some(node_lb::Response::Reject))?,
            Self::NftCount => nftables::start(&lab.lab)?,
            Self::HaproxyQueue => return haproxy::start(&lab.lab, Policy::Queue).map(Some),
            Self::HaproxyPriority => return haproxy::start(&lab.lab, Policy::Priority).map(Some),
            Self::HaproxyLimit => return haproxy::start(&lab.lab, Policy::Limit).map(Some),
        }
        Ok(None)
    }
}
