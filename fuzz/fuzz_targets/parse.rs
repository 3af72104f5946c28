//! Any bytes as an IP packet: headers are found inside the packet, or not at all.
#![no_main]

use lb_common::{
    addr::{Address, Ip4, Ip6},
    frame::Frame,
    parse::{self, Segment},
};
use lb_datapath::memory::MemoryFrame;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let frame = MemoryFrame::<false>::new(bytes.to_vec(), 0);
    read::<Ip4>(&frame);
    read::<Ip6>(&frame);
});

fn read<A: Address>(frame: &MemoryFrame) {
    let packet = frame.packet();
    let Some(network) = parse::network::<A>(packet, 0) else {
        return;
    };
    assert!(network.payload >= A::HEADER);
    assert!(network.length as usize >= A::HEADER);
    let at = network.payload;
    if let Some(ports) = parse::ports(packet, at) {
        let source = [packet.load::<u8>(at), packet.load::<u8>(at + 1)].map(Option::unwrap);
        assert_eq!(ports.source, u16::from_be_bytes(source));
    }
    let mut segment = Segment::default();
    if parse::segment(packet, &network, &mut segment).is_some() {
        let flags = packet.load::<u8>(at + 13).unwrap();
        assert_eq!(segment.flags, flags);
        assert!(segment.scale <= 14);
    }
    if parse::association(packet, &network, &mut segment).is_some() {
        let tag = packet.load::<u32>(at + 4).unwrap();
        assert_eq!(segment.acknowledged, u32::from_be(tag));
        assert!(segment.window <= 1);
    }
}
