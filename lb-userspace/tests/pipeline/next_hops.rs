//! Where packets leave, and which hook sends them.

use lb_common::verdict::{Action, Reason};
use lb_datapath::memory::{MemoryFrame, Route};
use lb_packet::{ETHERNET, Read, TCP, UDP, pseudo_header_sum};

use crate::{
    hooks::ingress,
    scene::{self, Scene},
};

#[test]
fn next_hops_are_looked_up_again_when_routes_change() {
    for scene in Scene::each() {
        let mut tables = scene.tables();
        let endpoint = scene.endpoint(0).ip();
        let frame = scene.opening(4000);
        assert_eq!(ingress(&tables, &frame).action, Action::Redirect);

        tables.add_route(endpoint.into(), Route::None);
        let outcome = ingress(&tables, &frame);
        assert_eq!(
            (outcome.action, outcome.reason),
            (Action::Drop, Reason::NoRoute)
        );
    }
}

#[test]
fn xdp_leaves_what_it_cannot_send_to_a_later_hook() {
    for scene in Scene::each() {
        let endpoint = scene.endpoint(0).ip();
        for unreachable in [Route::None, Route::Unresolved(1), Route::To(scene::hop(2))] {
            let mut tables = scene.tables();
            let pod_side = tables.add_device("veth0", 0);
            assert_eq!(pod_side, 2);
            tables.add_route(endpoint.into(), unreachable);
            let sent = scene.opening(4000);
            let mut frame = MemoryFrame::<false>::new(sent.clone(), 1);
            let verdict = tables.xdp().ingress(&mut frame);
            assert_eq!(
                (verdict.action, verdict.reason),
                (Action::Pass, Reason::LaterHook)
            );
            assert_eq!(frame.into_bytes(), sent, "untouched");
        }
    }
}

#[test]
fn incomplete_checksums_are_left_to_a_hook_that_can_tell() {
    for scene in Scene::each() {
        let tables = scene.tables();
        let (from, to) = (scene.client(4000), scene.target());
        let mut sent = scene.opening(4000);
        let virtual_device = |frame: Vec<u8>| {
            let mut frame = MemoryFrame::<true>::new(frame, 1);
            let verdict = tables.xdp().ingress(&mut frame);
            (verdict.reason, frame.into_bytes())
        };
        assert_eq!(virtual_device(sent.clone()).0, Reason::Opened);

        let read = Read::frame(&sent);
        let sum = pseudo_header_sum(from.ip(), to.ip(), scene.protocol, read.payload().len());
        let at = ETHERNET + read.transport;
        match scene.protocol {
            TCP => sent[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes()),
            UDP => sent[at + 6..at + 8].copy_from_slice(&sum.to_be_bytes()),
            _ => sent[at + 8..at + 12].fill(0),
        }
        assert_eq!(
            virtual_device(sent.clone()),
            (Reason::PartialChecksum, sent)
        );
    }
}
