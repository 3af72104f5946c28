//! Maglev with `node-lb.io/hash-balance-factor`: no endpoint has many more connections open than the mean.

use std::collections::BTreeMap;

use anyhow::Result;
use lb_tests::{Endpoint, Family, traffic::Held};

use crate::ground::{Frontend, Ground, Vips};

const VIPS: Vips = Vips(1);
/// In percent of the mean.
const FACTOR: usize = 110;
/// Connections that are held open.
const MANY: usize = 80;

/// How many of these connections each server has.
fn servers(held: &mut [Held]) -> Result<BTreeMap<String, usize>> {
    let mut servers = BTreeMap::new();
    for connection in held {
        *servers.entry(connection.ask()?.server).or_default() += 1;
    }
    Ok(servers)
}

#[test]
fn no_server_has_many_more_connections_than_another() -> Result<()> {
    let ground = Ground::new()?;
    let lab = ground.lab();
    let pods = lab.pods().len();
    let publish = |absent: usize| {
        let factor = FACTOR.to_string();
        ground.publish(
            VIPS,
            |service| {
                let service = service.annotation("node-lb.io/algorithm", "maglev");
                service.annotation("node-lb.io/hash-balance-factor", &factor)
            },
            lab.pods().iter().skip(absent).map(Endpoint::ready),
        )?;
        ground.settle()
    };
    for family in Family::BOTH {
        publish(0)?;
        let target = VIPS.at(Frontend::LoadBalancerIp, family, lab.node(1));
        let mut held = Held::open_all(lab.client(), target, MANY);
        assert_eq!(held.len(), MANY);
        let most = (FACTOR * MANY).div_ceil(100 * pods);
        let before = servers(&mut held)?;
        assert!(before.values().all(|has| *has <= most), "{before:?}");
        assert_eq!(before.len(), pods);

        // One leaves: its connections go on, and new ones are shared out among the others.
        publish(1)?;
        let mut more = Held::open_all(lab.client(), target, MANY);
        assert_eq!(more.len(), MANY);
        let gone = lab.pods()[0].name();
        let after = servers(&mut more)?;
        assert!(!after.contains_key(gone), "{after:?}");
        let stayed = 2 * MANY - before[gone];
        let most = (FACTOR * stayed).div_ceil(100 * (pods - 1));
        for (server, has) in &after {
            let all = has + before[server];
            assert!(all <= most, "{server} has {all}: {before:?}, {after:?}");
        }
        assert_eq!(servers(&mut held)?, before);
        for connection in held.iter().chain(&more) {
            assert_eq!(connection.retransmissions()?, 0);
        }
    }
    Ok(())
}
