//! How the agent finds the data plane.

use prometheus::{Gauge, IntCounter};

use super::Register;

/// What the agent finds when it compares the data plane with what it should be.
#[derive(Clone, Debug)]
pub struct VerificationMetrics {
    /// Records compared.
    pub records: IntCounter,
    /// Differences found and put right.
    pub differences: IntCounter,
    /// How often everything has been compared.
    pub rounds: IntCounter,
    /// When everything was last compared once.
    pub last_round: Gauge,
}

impl VerificationMetrics {
    pub(super) fn new(register: &Register<'_>) -> Self {
        Self {
            records: register.counter(
                "node_lb_verification_records_total",
                "Records of the data plane that were compared with what they should be.",
            ),
            differences: register.counter(
                "node_lb_verification_differences_total",
                "Records that were not as they had been written, and were put right.",
            ),
            rounds: register.counter(
                "node_lb_verification_rounds_total",
                "How often the whole data plane was compared with what it should be.",
            ),
            last_round: register.add(Gauge::new(
                "node_lb_verification_last_round_timestamp_seconds",
                "When the whole data plane was last compared with what it should be.",
            )),
        }
    }
}

/// What the agent finds when it sends test packets.
#[derive(Clone, Debug)]
pub struct TestPacketMetrics {
    /// Packets that programs have decided about.
    pub packets: IntCounter,
    /// Those with which they did something else than Services ask for, twice in a row.
    pub differences: IntCounter,
    /// How often there have been some to every Service.
    pub rounds: IntCounter,
    /// When there had last been some to every Service.
    pub last_round: Gauge,
}

impl TestPacketMetrics {
    pub(super) fn new(register: &Register<'_>) -> Self {
        Self {
            packets: register.counter(
                "node_lb_test_packets_total",
                "Test packets that programs have decided about.",
            ),
            differences: register.counter(
                "node_lb_test_packet_differences_total",
                "Test packets with which programs did something else than Services ask for.",
            ),
            rounds: register.counter(
                "node_lb_test_packet_rounds_total",
                "How often there were test packets to every address of every Service.",
            ),
            last_round: register.add(Gauge::new(
                "node_lb_test_packets_last_round_timestamp_seconds",
                "When there had last been test packets to every address of every Service.",
            )),
        }
    }
}
