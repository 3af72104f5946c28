//! Which service ports have metrics of their own: their number is users' to choose, and so is how
//! many a Prometheus can take.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    mem::take,
};

use lb_objects::{ObjectName, Protocol};

use super::kernel::ServiceTraffic;
use crate::{config::ServiceSeries, latency::Total};

/// `service` of what all others together have, with an empty `namespace`, which no Service has.
const OTHER: &str = "other";

/// A service port, both families together.
type Port = (ObjectName, String, Protocol);

/// Sums up what is beyond the limit.
///
/// Whoever has series keeps them until it is gone, so that graphs go on and there are never more
/// series over time than come with new Services; places that are free go to the busiest.
#[derive(Debug, Default)]
pub struct Selection {
    series: ServiceSeries,
    chosen: HashSet<Port>,
    /// Of those that have been answered, which programs count in numbers that begin anew.
    latencies: HashMap<Port, Total>,
    /// What is shown of the others, and what it is more than their sum: a counter does not go down
    /// because one of them went or got series of its own.
    shown: Vec<u64>,
    ahead: Vec<u64>,
}

impl Selection {
    pub fn new(series: ServiceSeries) -> Self {
        Self {
            series,
            ..Self::default()
        }
    }

    /// Leaves those that have series, and adds the sum of the others if there are any.
    pub fn apply(&mut self, services: &mut Vec<ServiceTraffic>) {
        if self.series == ServiceSeries::Off {
            return services.clear();
        }
        self.follow_latencies(services);
        let ServiceSeries::Limit(limit) = self.series else {
            return;
        };
        let limit = limit.get() as usize;
        let present: HashSet<Port> = services.iter().map(port).collect();
        self.chosen.retain(|chosen| present.contains(chosen));
        let free = limit.saturating_sub(self.chosen.len());
        if free > 0 {
            let waiting = services.iter().filter(|s| !self.chosen.contains(&port(s)));
            // By name where the numbers are equal: the same on each node.
            let busiest: BTreeSet<_> = waiting
                .map(|service| (u64::MAX - service.connections, port(service)))
                .collect();
            let busiest = busiest.into_iter().map(|(_, port)| port);
            self.chosen.extend(busiest.take(free));
        }
        let (mine, others): (Vec<_>, Vec<_>) = take(services)
            .into_iter()
            .partition(|service| self.chosen.contains(&port(service)));
        *services = mine;
        if !others.is_empty() || self.shown.iter().any(|shown| *shown != 0) {
            services.push(self.sum(others));
        }
    }

    /// Adds what programs have counted since the last call. Those that are gone are forgotten.
    fn follow_latencies(&mut self, services: &mut [ServiceTraffic]) {
        let mut known = take(&mut self.latencies);
        let answered = services
            .iter_mut()
            .filter(|service| service.answered.flows() > 0);
        for service in answered {
            let port = port(service);
            let mut total = known.remove(&port).unwrap_or_default();
            total.follow(&service.answered);
            service.latencies = total;
            self.latencies.insert(port, total);
        }
    }

    fn sum(&mut self, others: Vec<ServiceTraffic>) -> ServiceTraffic {
        let mut sum = ServiceTraffic::none(ObjectName::new(String::new(), OTHER));
        for mut other in others {
            for (sum, other) in sum.counters().zip(other.counters()) {
                *sum += *other;
            }
            sum.half_open += other.half_open;
            sum.failing.extend(other.failing);
        }
        let counters: Vec<_> = sum.counters().collect();
        self.shown.resize(counters.len(), 0);
        self.ahead.resize(counters.len(), 0);
        let known = self.shown.iter_mut().zip(&mut self.ahead);
        for (value, (shown, ahead)) in counters.into_iter().zip(known) {
            *ahead = (*ahead).max(shown.saturating_sub(*value));
            *value += *ahead;
            *shown = *value;
        }
        sum
    }
}

fn port(service: &ServiceTraffic) -> Port {
    (
        service.service.clone(),
        service.port.clone(),
        service.protocol,
    )
}

#[cfg(test)]
mod tests {
    use lb_common::abi::Latencies;

    use super::*;

    fn traffic(names: &[(&str, u64)]) -> Vec<ServiceTraffic> {
        let named = names.iter().map(|(name, connections)| ServiceTraffic {
            connections: *connections,
            ..ServiceTraffic::none(ObjectName::new("shop", *name))
        });
        named.collect()
    }

    fn apply(selection: &mut Selection, names: &[(&str, u64)]) -> Vec<(String, u64)> {
        let mut services = traffic(names);
        selection.apply(&mut services);
        let shown = services.into_iter();
        shown
            .map(|s| (s.service.name.to_string(), s.connections))
            .collect()
    }

    fn shown(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
        let owned = expected.iter();
        owned
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect()
    }

    #[test]
    fn busiest_come_first_and_stay_and_the_others_never_count_down() {
        let mut two = Selection::new("2".parse().unwrap());
        let found = apply(&mut two, &[("a", 1), ("b", 9), ("c", 5)]);
        assert_eq!(found, shown(&[("b", 9), ("c", 5), ("other", 1)]));
        let found = apply(&mut two, &[("a", 100), ("b", 9), ("c", 5), ("d", 7)]);
        assert_eq!(found, shown(&[("b", 9), ("c", 5), ("other", 107)]));
        // `a` takes the place of `b`, and its connections stay counted among the others'.
        let found = apply(&mut two, &[("a", 101), ("c", 5), ("d", 7)]);
        assert_eq!(found, shown(&[("a", 101), ("c", 5), ("other", 107)]));
        let found = apply(&mut two, &[("a", 101), ("c", 5), ("d", 10)]);
        assert_eq!(found, shown(&[("a", 101), ("c", 5), ("other", 110)]));
        let found = apply(&mut two, &[]);
        assert_eq!(found, shown(&[("other", 110)]));
    }

    #[test]
    fn latencies_of_others_are_summed_up_and_never_count_down() {
        let mut selection = Selection::new("1".parse().unwrap());
        let mut apply = |answered: &[(&str, u64, u32)]| {
            let services = answered.iter().map(|(name, connections, flows)| {
                let mut service = traffic(&[(*name, *connections)]).remove(0);
                let mut buckets = Latencies::default();
                buckets.buckets[3] = *flows;
                service.answered.add(&buckets);
                service
            });
            let mut services: Vec<_> = services.collect();
            selection.apply(&mut services);
            let flows = services.iter().map(|service| service.latencies.flows());
            flows.collect::<Vec<_>>()
        };
        assert_eq!(apply(&[("a", 9, 9), ("b", 3, 2), ("c", 2, 1)]), [9, 3]);
        assert_eq!(apply(&[("a", 9, 9), ("c", 2, 1)]), [9, 3]);
        assert_eq!(apply(&[("a", 9, 9), ("c", 9, 5)]), [9, 7]);
    }

    #[test]
    fn all_or_none() {
        let names = [("a", 1), ("b", 9)];
        let mut all = Selection::new(ServiceSeries::All);
        assert_eq!(apply(&mut all, &names), shown(&names));
        let mut off = Selection::new("off".parse().unwrap());
        assert_eq!(apply(&mut off, &names), []);
        let mut many = Selection::new("3".parse().unwrap());
        assert_eq!(apply(&mut many, &names), shown(&names));
    }

    #[test]
    fn spelling() {
        for text in ["all", "off", "500"] {
            assert_eq!(text.parse::<ServiceSeries>().unwrap().to_string(), text);
        }
        assert!("0".parse::<ServiceSeries>().is_err());
        assert!("some".parse::<ServiceSeries>().is_err());
    }
}
