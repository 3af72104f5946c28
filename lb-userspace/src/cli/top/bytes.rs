//! Bytes of TCP connections, by the sequence numbers in their records. Programs keep these numbers in any case, to tell
//! forged segments from true ones, so packets pay nothing for it.

use lb_common::{
    addr::Address,
    flow::{Flow, flow_flag, tcp::REACH},
    parse::TCP,
};

use crate::flows::{Connection, which};

/// Bytes that connections have carried, of applications: without headers, and once if they were sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    pub from_clients: u64,
    pub to_clients: u64,
}

impl Bytes {
    /// Both together.
    #[must_use]
    pub fn and(self, more: Self) -> Self {
        Self {
            from_clients: self.from_clients + more.from_clients,
            to_clients: self.to_clients + more.to_clients,
        }
    }
}

/// Where the connections of a table were when they were looked at. They are told in the order of the table, so that
/// each look goes along the one before.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    before: Vec<Mark>,
    /// How many of those before lie behind.
    behind: usize,
    now: Vec<Mark>,
    /// The size of the table. In one of another size, records have other places.
    records: u32,
}

/// Where a connection was.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// Of the client's record.
    index: u32,
    /// Which flow that is of.
    which: u32,
    client: Option<u32>,
    endpoint: Option<u32>,
}

impl Marks {
    /// Begins another look at a table of so many records.
    pub fn look(&mut self, records: u32) {
        std::mem::swap(&mut self.before, &mut self.now);
        self.now.clear();
        self.behind = 0;
        if std::mem::replace(&mut self.records, records) != records {
            self.before.clear();
        }
    }

    /// The bytes that a connection has carried since the look before; `None` if that look has not seen it, or if it is
    /// not TCP. `index` is that of the client's record, and more than that of the last call.
    pub fn pass<A: Address>(&mut self, index: u32, connection: &Connection<A>) -> Option<Bytes> {
        let Connection { forward, reply } = connection;
        if forward.protocol() != TCP {
            return None;
        }
        let which = which(forward.tag);
        let before = self.before(index).filter(|before| before.which == which);
        let (client, from_clients) = go_on(before.and_then(|before| before.client), forward);
        let (endpoint, to_clients) = go_on(before.and_then(|before| before.endpoint), reply);
        self.now.push(Mark {
            index,
            which,
            client,
            endpoint,
        });
        Some(Bytes {
            from_clients: from_clients?,
            to_clients: to_clients?,
        })
    }

    /// What the look before has seen at the client's record with this index.
    fn before(&mut self, index: u32) -> Option<Mark> {
        let rest = &self.before[self.behind..];
        self.behind += rest.iter().take_while(|mark| mark.index < index).count();
        let mark = self.before.get(self.behind)?;
        (mark.index == index).then_some(*mark)
    }
}

/// The number after the last byte that a direction's sender has sent, and how many there were since that number
/// `before`. What came again does not count.
fn go_on<A: Address>(before: Option<u32>, flow: &Flow<A>) -> (Option<u32>, Option<u64>) {
    let has_numbers = flow.has(flow_flag::SEEN) && !flow.is_foreign();
    // A FIN has a number, too.
    let now = has_numbers.then(|| flow.next.wrapping_sub(u32::from(flow.has(flow_flag::FIN))));
    let (Some(before), Some(now)) = (before, now) else {
        return (now, None);
    };
    match before.wrapping_sub(now) < REACH {
        true => (Some(before), Some(0)),
        false => (Some(now), Some(now.wrapping_sub(before).into())),
    }
}
