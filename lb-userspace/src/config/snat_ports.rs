//! The node's ports for source NAT.

use std::fs;

use super::PortRange;

/// The kernel's setting of the ports from which the node's own connections start.
pub const EPHEMERAL: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// The ports below belong to well-known services.
const LOWEST: u16 = 1024;
/// With fewer ports, short connections to one endpoint use all of them up within a second or two:
/// an endpoint may remember a port for a minute (TIME-WAIT), and takes it earlier only for a SYN
/// that fits.
const FEW: u32 = 8192;

/// The ports from which the node's own connections start; `None` if the kernel does not say.
pub fn ephemeral() -> Option<PortRange> {
    parse(&fs::read_to_string(EPHEMERAL).ok()?)
}

fn parse(text: &str) -> Option<PortRange> {
    let (first, last) = text.trim().split_once(char::is_whitespace)?;
    Some(PortRange {
        first: first.parse().ok()?,
        last: last.trim().parse().ok()?,
    })
}

/// The largest range of ports outside all `taken` ones; if there is none, the lowest ports.
pub fn free_beside(taken: impl IntoIterator<Item = PortRange>) -> PortRange {
    let mut taken: Vec<_> = taken.into_iter().collect();
    taken.sort_unstable_by_key(|range| range.first);
    let mut best: Option<PortRange> = None;
    let mut next = u32::from(LOWEST);
    let ends = taken
        .iter()
        .map(|range| (u32::from(range.first), range.last));
    for (end, last) in ends.chain([(1 << 16, u16::MAX)]) {
        let free = (next < end).then(|| PortRange {
            first: next as u16,
            last: (end - 1) as u16,
        });
        if free.is_some_and(|free| best.is_none_or(|best| free.count() > best.count())) {
            best = free;
        }
        next = next.max(u32::from(last) + 1);
    }
    best.unwrap_or(PortRange {
        first: LOWEST,
        last: u16::MAX,
    })
}

/// What is wrong with a choice of ports, if anything. `own` are the [`ephemeral`] ports.
pub fn problem(ports: PortRange, own: Option<PortRange>, node_ports: PortRange) -> Option<String> {
    let clash = |of: PortRange, what: &str| {
        let overlap = ports.first <= of.last && of.first <= ports.last;
        overlap.then(|| format!("{ports} are also {what} ({of})"))
    };
    let count = ports.count();
    let few = || {
        format!(
            "{ports} are only {count} ports: so many connections fit to an endpoint at a time, those that \
             have just ended among them"
        )
    };
    let problems = [
        own.and_then(|own| clash(own, "those of the node's own connections")),
        clash(node_ports, "NodePorts"),
        (count < FEW).then(few),
    ];
    let problems: Vec<_> = problems.into_iter().flatten().collect();
    (!problems.is_empty()).then(|| problems.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> PortRange {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse("32768\t60999\n"), Some(range("32768-60999")));
        assert_eq!(parse(""), None);
    }

    #[test]
    fn the_largest_gap_is_free() {
        for (taken, free) in [
            (&["32768-60999", "30000-32767"][..], "1024-29999"),
            (&["1024-40000"], "40001-65535"),
            (&["1024-65535"], "1024-65535"),
            (&["2000-3000", "1500-60000"], "60001-65535"),
            (&[], "1024-65535"),
        ] {
            let taken = taken.iter().map(|text| range(text));
            assert_eq!(free_beside(taken), range(free));
        }
    }

    #[test]
    fn few_ports_and_those_of_others_are_a_problem() {
        let own = range("32768-60999");
        let problem = |ports| problem(range(ports), Some(own), range("30000-32767"));
        assert_eq!(problem("1024-29999"), None);
        assert_eq!(problem("20000-28191"), None, "just enough");
        let few = problem("20000-28190").unwrap();
        assert!(few.contains("only 8191 ports"), "{few}");
        let node_ports = problem("20000-31000").unwrap();
        assert_eq!(node_ports, "20000-31000 are also NodePorts (30000-32767)");
        let all = problem("32000-33000").unwrap();
        for part in ["own connections (32768-60999)", "NodePorts", "1001 ports"] {
            assert!(all.contains(part), "{all}");
        }
    }

    #[test]
    fn the_default_is_a_problem_only_where_the_node_leaves_little() {
        let node_ports = range("30000-32767");
        for (own, ports, words) in [
            ("32768-60999", "1024-29999", None),
            ("1024-60999", "61000-65535", Some("only 4536 ports")),
            (
                "1024-65535",
                "1024-65535",
                Some("the node's own connections"),
            ),
        ] {
            let own = range(own);
            let chosen = free_beside([own, node_ports]);
            assert_eq!(chosen, range(ports));
            let problem = problem(chosen, Some(own), node_ports);
            match words {
                None => assert_eq!(problem, None),
                Some(words) => assert!(problem.unwrap().contains(words)),
            }
        }
    }
}
