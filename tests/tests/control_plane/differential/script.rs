//! How conversations go on once a client has reached an endpoint.

use fastrand::Rng;
use lb_packet::{Chunk, chunk, tcp_flag};

use super::{
    message::{Body, Kind, Message, NUMBERS, Shape, TAGS},
    scene::choose,
};

/// The sides of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Client,
    Endpoint,
}

/// What happens next.
pub enum Step {
    Send(End, Message),
    /// A router, or the side itself, says that the latest packet to the side was lost.
    Error {
        at: End,
        by_router: bool,
        kind: (u8, u8),
        word: u32,
        quote: usize,
    },
}

/// How a conversation goes on.
pub fn steps(kind: Kind, rng: &mut Rng, is_v4: bool) -> Vec<(String, Step)> {
    let mut steps = match kind {
        Kind::Tcp => tcp_steps(rng),
        Kind::Udp => udp_steps(rng),
        Kind::Sctp => sctp_steps(rng),
        Kind::Echo | Kind::Other => Vec::new(),
    };
    for _ in 0..rng.usize(0..=2) {
        let at = *choose(rng, &[End::Client, End::Endpoint]);
        let errors = match is_v4 {
            true => &[
                ((3, 1), 0),
                ((3, 3), 0),
                ((3, 4), 1300),
                ((11, 0), 0),
                ((12, 0), 0),
            ],
            false => &[
                ((1, 0), 0),
                ((1, 4), 0),
                ((2, 0), 1300),
                ((3, 0), 0),
                ((4, 0), 40),
            ],
        };
        let (kind, word) = *choose(rng, errors);
        let step = Step::Error {
            at,
            by_router: rng.bool(),
            kind,
            word,
            quote: *choose(rng, &[8, 8, 28, 64, 500]),
        };
        // A SYN that did not arrive is not answered.
        let index = rng.usize(steps.len().min(2)..=steps.len());
        let name = format!("ICMP {}/{} from the {at:?}'s side", kind.0, kind.1);
        steps.insert(index, (name, step));
    }
    steps
}

fn tcp_steps(rng: &mut Rng) -> Vec<(String, Step)> {
    use tcp_flag::{ACK, FIN, PSH, RST, SYN};
    let mut next = NUMBERS;
    let mut steps = Vec::new();
    let mut add = |end: End, flags: u8, length: usize, shape: Shape| {
        let (own, other) = (end as usize, 1 - end as usize);
        let body = Body::Tcp {
            flags,
            sequence: next[own],
            acknowledged: if flags & ACK == 0 { 0 } else { next[other] },
            data: vec![b'd'; length],
        };
        let step = format!("TCP {flags:#x} with {length} bytes from the {end:?}");
        steps.push((step, Step::Send(end, Message { body, shape })));
        let ends = u32::from(flags & (SYN | FIN) != 0);
        next[own] = next[own].wrapping_add(length as u32 + ends);
    };
    // The client does not wait for the answer to its first one.
    add(End::Client, SYN, 0, Shape::default());
    add(End::Endpoint, SYN | ACK, 0, Shape::random(rng));
    add(End::Client, ACK, 0, Shape::default());
    for _ in 0..rng.usize(0..5) {
        let end = *choose(rng, &[End::Client, End::Endpoint]);
        // None is too long for a wire: nobody acknowledges what has not come.
        let length = *choose(rng, &[0, 1, 100, 1000, 1300]);
        add(end, PSH | ACK, length, Shape::random(rng));
    }
    let first = *choose(rng, &[End::Client, End::Endpoint]);
    let second = if first == End::Client {
        End::Endpoint
    } else {
        End::Client
    };
    match rng.u8(0..4) {
        0 => add(first, RST, 0, Shape::default()),
        1 => add(first, RST | ACK, 0, Shape::default()),
        2 => {
            add(first, FIN | ACK, 0, Shape::default());
            add(second, FIN | ACK, 0, Shape::default());
            add(first, ACK, 0, Shape::default());
        }
        _ => {}
    }
    steps
}

fn udp_steps(rng: &mut Rng) -> Vec<(String, Step)> {
    let mut steps = Vec::new();
    for _ in 0..rng.usize(1..6) {
        let end = *choose(rng, &[End::Client, End::Endpoint, End::Endpoint]);
        let mut shape = Shape::random(rng);
        let mut length = *choose(rng, &[0, 1, 100, 1200, 1350, 1372]);
        if rng.u8(..) < 50 {
            length = rng.usize(100..4000);
            shape.fragments = Some(*choose(rng, &[64, 512, 1024]));
        }
        let body = Body::Udp {
            data: vec![b'u'; length],
            has_checksum: true,
        };
        let name = format!("UDP with {length} bytes from the {end:?}");
        steps.push((name, Step::Send(end, Message { body, shape })));
    }
    steps
}

fn sctp_steps(rng: &mut Rng) -> Vec<(String, Step)> {
    let mut steps = Vec::new();
    let mut add = |end: End, chunks: Vec<Chunk>, shape: Shape| {
        // The other side's tag.
        let tag = TAGS[1 - end as usize];
        let kinds: Vec<_> = chunks.iter().map(|chunk| chunk.kind).collect();
        let body = Body::Sctp { tag, chunks };
        let name = format!("SCTP {kinds:?} from the {end:?}");
        steps.push((name, Step::Send(end, Message { body, shape })));
    };
    add(
        End::Endpoint,
        vec![Chunk::asking_for(chunk::INIT_ACK, TAGS[1])],
        Shape::default(),
    );
    add(
        End::Client,
        vec![Chunk::new(chunk::COOKIE_ECHO).with(b"cookie")],
        Shape::default(),
    );
    add(
        End::Endpoint,
        vec![Chunk::new(chunk::COOKIE_ACK)],
        Shape::default(),
    );
    for _ in 0..rng.usize(0..4) {
        let end = *choose(rng, &[End::Client, End::Endpoint]);
        let data = vec![b's'; *choose(rng, &[20, 100, 1000])];
        let chunk = match rng.u8(0..3) {
            0 => Chunk::new(chunk::HEARTBEAT).with(b"heartbeat info"),
            _ => Chunk::new(chunk::DATA).with(&data),
        };
        add(end, vec![chunk], Shape::random(rng));
    }
    match rng.u8(0..3) {
        0 => add(
            End::Client,
            vec![Chunk::new(chunk::ABORT)],
            Shape::default(),
        ),
        1 => {
            let ends = Chunk::new(chunk::SHUTDOWN).with(&[0, 0, 0, 1]);
            add(End::Client, vec![ends], Shape::default());
            add(
                End::Endpoint,
                vec![Chunk::new(chunk::SHUTDOWN_ACK)],
                Shape::default(),
            );
            add(
                End::Client,
                vec![Chunk::new(chunk::SHUTDOWN_COMPLETE)],
                Shape::default(),
            );
        }
        _ => {}
    }
    steps
}
