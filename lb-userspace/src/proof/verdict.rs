//! Compares what a program has done with a packet with what it should have done.

use std::fmt;

use lb_common::verdict::Reason;
use lb_datapath::replica::{Fate, OpenedFlow, Outcome};

use super::{
    packet,
    wanted::{Choice, Wanted},
};

/// Endpoints that are listed; more are only counted.
const LISTED: usize = 10;

/// How an outcome compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    AsWanted,
    /// The program leaves the packet to the kernel, which would not take it from where it came.
    NotTaken,
    Differs,
}

/// Compares what has become of a packet, which was `sent` so.
///
/// Which endpoint of a set it is does not matter: that is drawn. Nor does it matter here whether there is a way to
/// it. XDP may leave a packet to TC then ([`Reason::LaterHook`]), and TC may have to drop it
/// ([`Reason::NoRoute`]). The endpoint is chosen all the same, and its flow says which one.
pub fn verdict(outcome: &Outcome, wanted: &Wanted, sent: &[u8]) -> Verdict {
    let is_right = match (outcome.reason, wanted) {
        (Reason::MartianSource, _) => return Verdict::NotTaken,
        (_, Wanted::Passed) => outcome.fate == Fate::Passed && outcome.flow.is_none(),
        (reason, Wanted::Refused(wanted)) => {
            reason == *wanted && outcome.flow.is_none() && outcome.fate != Fate::Passed
        }
        (reason, Wanted::ToOneOf(choices)) => outcome.flow.as_ref().is_some_and(|flow| {
            let is_chosen = choices.iter().any(|choice| *choice == Choice::from(flow));
            is_chosen
                && match reason {
                    Reason::Opened => is_sent_so(outcome, flow),
                    Reason::LaterHook => outcome.fate == Fate::Passed && outcome.frame == sent,
                    Reason::NoRoute => outcome.fate == Fate::Dropped,
                    _ => false,
                }
        }),
    };
    match is_right {
        true => Verdict::AsWanted,
        false => Verdict::Differs,
    }
}

/// Whether a packet leaves as its flow says.
fn is_sent_so(outcome: &Outcome, flow: &OpenedFlow) -> bool {
    let fate = match flow.bypasses {
        true => Fate::Sent,
        false => Fate::Passed,
    };
    outcome.fate == fate && packet::addresses(&outcome.frame) == Some((flow.source, flow.endpoint))
}

/// What has become of a packet, for people.
pub fn found(outcome: &Outcome) -> String {
    let reason = outcome.reason.name();
    let fate = match outcome.fate {
        Fate::Passed => "passed to the host's stack",
        Fate::Sent => "sent on",
        Fate::Dropped => "dropped",
    };
    match &outcome.flow {
        Some(flow) => format!("{} ({reason}, {fate})", Choice::from(flow)),
        None => format!("{reason} ({fate})"),
    }
}

impl From<&OpenedFlow> for Choice {
    fn from(flow: &OpenedFlow) -> Self {
        Self {
            endpoint: flow.endpoint,
            source_nat: flow.source_nat,
            bypasses: flow.bypasses,
        }
    }
}

/// `10.244.1.7:8080 with source NAT, past the host's stack`.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match self.source_nat {
            true => " with source NAT",
            false => "",
        };
        let way = match self.bypasses {
            true => "past",
            false => "through",
        };
        write!(f, "{}{source}, {way} the host's stack", self.endpoint)
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed to the host's stack as it is"),
            Self::Refused(reason) => f.write_str(reason.name()),
            Self::ToOneOf(choices) => {
                let listed: Vec<_> = choices.iter().take(LISTED).map(Choice::to_string).collect();
                f.write_str(&listed.join("; or "))?;
                match choices.len().saturating_sub(LISTED) {
                    0 => Ok(()),
                    more => write!(f, "; or one of {more} more"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use lb_objects::Protocol;

    use super::*;

    const CLIENT: &str = "198.51.100.1:40000";
    const SERVICE: &str = "10.96.0.1:80";
    const ENDPOINT: &str = "10.244.1.7:8080";

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn frame(source: &str, to: &str) -> Vec<u8> {
        packet::first([2; 6], address(source), address(to), Protocol::Tcp)
    }

    fn flow() -> OpenedFlow {
        OpenedFlow {
            source: address(CLIENT),
            endpoint: address(ENDPOINT),
            source_nat: false,
            bypasses: true,
        }
    }

    fn opened() -> Outcome {
        Outcome {
            fate: Fate::Sent,
            reason: Reason::Opened,
            frame: frame(CLIENT, ENDPOINT),
            flow: Some(flow()),
        }
    }

    fn compared(outcome: &Outcome, wanted: &Wanted) -> Verdict {
        verdict(outcome, wanted, &frame(CLIENT, SERVICE))
    }

    #[test]
    fn a_packet_may_go_to_each_endpoint_of_the_set() {
        let other = Choice {
            endpoint: address("10.244.1.8:8080"),
            ..Choice::from(&flow())
        };
        let set = Wanted::ToOneOf(vec![other, Choice::from(&flow())]);
        assert_eq!(compared(&opened(), &set), Verdict::AsWanted);
        let differs = [
            ("another endpoint", Wanted::ToOneOf(vec![other])),
            ("a refusal", Wanted::Refused(Reason::NoEndpoints)),
            ("nothing", Wanted::Passed),
            ("nobody", Wanted::ToOneOf(vec![])),
        ];
        for (what, wanted) in differs {
            assert_eq!(compared(&opened(), &wanted), Verdict::Differs, "{what}");
        }
    }

    #[test]
    fn everything_about_the_way_there_counts() {
        let set = Wanted::ToOneOf(vec![Choice::from(&flow())]);
        let with = |change: fn(&mut Outcome)| {
            let mut outcome = opened();
            change(&mut outcome);
            compared(&outcome, &set)
        };
        let of_flow = |change: fn(&mut OpenedFlow)| {
            let mut outcome = opened();
            outcome.flow.as_mut().map(change);
            compared(&outcome, &set)
        };
        assert_eq!(of_flow(|flow| flow.source_nat = true), Verdict::Differs);
        assert_eq!(of_flow(|flow| flow.bypasses = false), Verdict::Differs);
        assert_eq!(with(|outcome| outcome.flow = None), Verdict::Differs);
        assert_eq!(
            with(|outcome| outcome.fate = Fate::Passed),
            Verdict::Differs
        );
        assert_eq!(
            with(|outcome| outcome.reason = Reason::SourceRange),
            Verdict::Differs
        );
        // The flow is right, but the packet is not translated so.
        let wrong = |outcome: &mut Outcome| outcome.frame = frame(CLIENT, SERVICE);
        assert_eq!(with(wrong), Verdict::Differs);
    }

    #[test]
    fn the_choice_counts_where_there_is_no_way_to_it_from_here() {
        let set = Wanted::ToOneOf(vec![Choice::from(&flow())]);
        let left = Outcome {
            fate: Fate::Passed,
            reason: Reason::LaterHook,
            frame: frame(CLIENT, SERVICE),
            ..opened()
        };
        assert_eq!(compared(&left, &set), Verdict::AsWanted);
        let changed = Outcome {
            frame: frame(CLIENT, ENDPOINT),
            ..left
        };
        assert_eq!(
            compared(&changed, &set),
            Verdict::Differs,
            "TC would see another packet"
        );
        let dropped = Outcome {
            fate: Fate::Dropped,
            reason: Reason::NoRoute,
            ..opened()
        };
        assert_eq!(compared(&dropped, &set), Verdict::AsWanted);
        let nobody = Outcome {
            flow: None,
            ..dropped
        };
        assert_eq!(compared(&nobody, &set), Verdict::Differs);
    }

    #[test]
    fn a_refusal_is_for_the_same_reason() {
        let refused = |reason, fate| Outcome {
            fate,
            reason,
            frame: frame(CLIENT, SERVICE),
            flow: None,
        };
        let none = Wanted::Refused(Reason::NoEndpoints);
        let rejected = refused(Reason::NoEndpoints, Fate::Sent);
        assert_eq!(compared(&rejected, &none), Verdict::AsWanted);
        let dropped = refused(Reason::SourceRange, Fate::Dropped);
        assert_eq!(compared(&dropped, &none), Verdict::Differs);
        assert_eq!(
            compared(&dropped, &Wanted::Refused(Reason::SourceRange)),
            Verdict::AsWanted
        );
        let passed = refused(Reason::NotService, Fate::Passed);
        assert_eq!(compared(&passed, &none), Verdict::Differs);
        assert_eq!(compared(&passed, &Wanted::Passed), Verdict::AsWanted);
        let martian = refused(Reason::MartianSource, Fate::Passed);
        assert_eq!(compared(&martian, &none), Verdict::NotTaken);
    }

    #[test]
    fn people_are_told_what_has_become_of_it() {
        let text = "10.244.1.7:8080, past the host's stack (opened, sent on)";
        assert_eq!(found(&opened()), text);
        let set = Wanted::ToOneOf(vec![Choice::from(&flow()); LISTED + 2]);
        let text = set.to_string();
        assert!(
            text.starts_with("10.244.1.7:8080, past the host's stack; or "),
            "{text}"
        );
        assert!(text.ends_with("; or one of 2 more"), "{text}");
    }
}
