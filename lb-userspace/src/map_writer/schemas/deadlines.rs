//! When connections of a flow schema are over, in ticks.

use std::time::Duration;

use lb_admission::deadlines;
use lb_common::flow::{Deadline, deadline::DEADLINES};
use lb_datapath::TickRate;

/// Each deadline in ticks; 0 where there is none.
pub fn in_ticks(deadlines: &deadlines::Deadlines, rate: TickRate) -> [u32; DEADLINES] {
    Deadline::ALL.map(|deadline| {
        let after = match deadline {
            Deadline::Handshake => Some(deadlines.handshake),
            Deadline::ClientIdle => deadlines.client_idle,
            Deadline::ServerIdle => deadlines.server_idle,
            Deadline::HalfClose => deadlines.half_close,
            Deadline::Lifetime => deadlines.lifetime,
        };
        after.map_or(0, |after: Duration| rate.ticks(after))
    })
}
