//! What every sample must show, besides its time.

use anyhow::{Result, ensure};
use lb_common::verdict::Reason;

use super::harness::Run;

/// Checks the last packet's verdict.
pub fn action(run: &Run, expected: u32) -> Result<()> {
    ensure!(
        run.action == expected,
        "the program returned {}, not {expected}",
        run.action
    );
    Ok(())
}

/// Checks the last packet, byte by byte.
pub fn frame(run: &Run, expected: &[u8]) -> Result<()> {
    ensure!(
        run.frame == expected,
        "the packet should be\n{expected:02x?}, is\n{:02x?}",
        run.frame
    );
    Ok(())
}

/// Checks that exactly these reasons were counted.
pub fn counts(counted: &[(Reason, u64)], expected: &[(Reason, u32)]) -> Result<()> {
    let expected: Vec<(Reason, u64)> = expected
        .iter()
        .map(|(reason, packets)| (*reason, u64::from(*packets)))
        .filter(|(_, packets)| *packets != 0)
        .collect();
    ensure!(counted == expected, "counted {counted:?}, not {expected:?}");
    Ok(())
}

/// Checks that each of `packets` opened a flow or was refused for lack of room, and that at least
/// the part `share` opened one. Returns how many did.
pub fn opened(counted: &[(Reason, u64)], packets: u32, share: f64) -> Result<u64> {
    let of = |wanted: &[Reason]| -> u64 {
        let counts = counted.iter().filter(|(reason, _)| wanted.contains(reason));
        counts.map(|(_, count)| count).sum()
    };
    let opened = of(&[Reason::Opened]);
    let refused = of(&[Reason::FlowTableFull, Reason::SnatPortsExhausted]);
    let all: u64 = counted.iter().map(|(_, count)| count).sum();
    ensure!(
        all == u64::from(packets) && opened + refused == all,
        "counted {counted:?} of {packets} first packets"
    );
    ensure!(
        opened as f64 >= share * f64::from(packets),
        "only {opened} of {packets} first packets opened a flow: {counted:?}"
    );
    Ok(opened)
}
