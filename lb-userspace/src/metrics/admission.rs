//! Metrics of connection admission, with the names and labels of API Priority and Fairness.

use lb_admission::limits::Limits;
use lb_common::flow::{Deadline, deadline::DEADLINES};
use prometheus::proto::{Metric, MetricFamily, MetricType};

use super::kernel::{counter, family, gauge, waits};
use crate::waiting;

/// A priority level, and what is counted of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelCount {
    pub name: String,
    /// Whether its connections are only counted.
    pub is_exempt: bool,
    /// What it may have.
    pub limits: Limits,
    /// The most seats in use at the moment, and how many are.
    pub limit: u32,
    pub in_use: u32,
    /// The most in use in the latest second.
    pub highest: u32,
    /// Connections refused.
    pub refused: u64,
    /// Connections let in above the limit, because it is only audited.
    pub over: u64,
    /// Seats taken without regard to the limit, by connections in progress.
    pub recovered: u64,
    /// Connections let in without being counted, because the cluster depends on their Service.
    pub exempted: u64,
    /// Free seats that are kept for flows without any.
    pub kept: u32,
    /// Seats that are still taken after the end of their connections.
    pub lingering: u32,
    /// Connections that wait for a seat.
    pub waiting: u32,
    /// Connections refused because too many of their queue waited.
    pub queue_full: u64,
    /// Seats of TCP handshakes that have been open for half a second at least.
    pub slow_handshakes: u32,
    /// Whether these are so many that handshakes take no seats.
    pub is_pressed: bool,
}

/// A flow schema, and what became of the connections that it took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchemaCount {
    pub name: String,
    /// Name of its priority level.
    pub level: String,
    /// Seats of the level that each of its connections takes.
    pub seats: u32,
    /// Connections let in.
    pub admitted: u64,
    /// Those of them above a limit that is only audited.
    pub over: u64,
    /// Those refused because no seat was free.
    pub refused: u64,
    /// Those refused because their flow, in the sense of API Priority and Fairness, had as many as one
    /// may have.
    pub flow_limit: u64,
    /// Those let in that no flow counts, because there was no room for it.
    pub uncounted: u64,
    /// Those that have run into each deadline, by its number.
    pub expired: [u64; DEADLINES],
    /// What became of those that had to wait for a seat, since the agent began.
    pub waited: waiting::Counts,
}

impl LevelCount {
    /// A metric of this kind with the level's label.
    fn metric(&self, of_kind: fn(&[(&str, &str)], u64) -> Metric, value: u64) -> Metric {
        of_kind(&[("priority_level", &self.name)], value)
    }
}

impl SchemaCount {
    fn metric(&self, of_kind: fn(&[(&str, &str)], u64) -> Metric, value: u64) -> Metric {
        let labels = [
            ("flow_schema", &*self.name),
            ("priority_level", &*self.level),
        ];
        of_kind(&labels, value)
    }

    fn counter(&self, value: u64) -> Metric {
        self.metric(counter, value)
    }

    /// Refused connections, by reason.
    fn rejected(&self) -> [Metric; 3] {
        let of = |reason, value| {
            let labels = [
                ("flow_schema", &*self.name),
                ("priority_level", &*self.level),
                ("reason", reason),
            ];
            counter(&labels, value)
        };
        [
            of("concurrency-limit", self.refused),
            of("flow-limit", self.flow_limit),
            of("time-out", self.waited.timed_out),
        ]
    }

    /// Waits, by whether the connection was let in at their end; without those that never occurred.
    fn waits(&self) -> impl Iterator<Item = Metric> {
        let waited = [
            ("true", &self.waited.let_in),
            ("false", &self.waited.in_vain),
        ];
        let some = waited.into_iter().filter(|(_, waited)| waited.number() > 0);
        some.map(|(execute, waited)| {
            let labels = [
                ("execute", execute),
                ("flow_schema", &self.name),
                ("priority_level", &self.level),
            ];
            waits(&labels, waited)
        })
    }

    /// Connections that ran into a deadline, by which one.
    fn expired(&self) -> [Metric; DEADLINES] {
        Deadline::ALL.map(|deadline| {
            let labels = [
                ("deadline", deadline.name()),
                ("flow_schema", &*self.name),
                ("priority_level", &*self.level),
            ];
            counter(&labels, self.expired[deadline as usize])
        })
    }
}

/// The families of all levels and schemas. Those of levels are without metrics if there is none.
pub(super) fn families(
    levels: &[LevelCount],
    schemas: &[SchemaCount],
    unclassified: u64,
) -> Vec<MetricFamily> {
    let of_levels = |name, help, of_kind, value: fn(&LevelCount) -> u64| {
        let kind = match name {
            name if str::ends_with(name, "_total") => MetricType::COUNTER,
            _ => MetricType::GAUGE,
        };
        let metrics = levels.iter();
        let metrics = metrics.map(move |level| level.metric(of_kind, value(level)));
        family(name, help, kind, metrics)
    };
    let of_limited = |name, help, value: fn(&LevelCount) -> u64| {
        let metrics = levels.iter().filter(|level| !level.is_exempt);
        let metrics = metrics.map(|level| level.metric(gauge, value(level)));
        family(name, help, MetricType::GAUGE, metrics)
    };
    let unclassified = (!levels.is_empty()).then(|| gauge(&[], unclassified));
    vec![
        of_levels(
            "node_lb_flowcontrol_nominal_limit_seats",
            "A priority level's own part of the node's seats.",
            gauge,
            |level| level.limits.nominal.into(),
        ),
        of_limited(
            "node_lb_flowcontrol_current_limit_seats",
            "The most seats that connections of a priority level may have at the moment; those that are exempt \
             are left out.",
            |level| level.limit.into(),
        ),
        of_limited(
            "node_lb_flowcontrol_lower_limit_seats",
            "What a priority level keeps, whatever others borrow.",
            |level| level.limits.min.into(),
        ),
        of_limited(
            "node_lb_flowcontrol_upper_limit_seats",
            "What a priority level may have with all that it may borrow.",
            |level| level.limits.max.into(),
        ),
        of_levels(
            "node_lb_flowcontrol_current_executing_seats",
            "Seats that the connections of a priority level hold.",
            gauge,
            |level| level.in_use.into(),
        ),
        of_limited(
            "node_lb_flowcontrol_kept_seats",
            "Free seats that a priority level keeps for flows without any.",
            |level| level.kept.into(),
        ),
        of_levels(
            "node_lb_flowcontrol_lingering_seats",
            "Seats of a priority level that are still taken after the end of their connections.",
            gauge,
            |level| level.lingering.into(),
        ),
        of_limited(
            "node_lb_flowcontrol_current_inqueue_connections",
            "Connections that wait for a seat of a priority level.",
            |level| level.waiting.into(),
        ),
        of_levels(
            "node_lb_flowcontrol_queue_full_connections_total",
            "Connections refused because too many of their queue waited.",
            counter,
            |level| level.queue_full,
        ),
        of_levels(
            "node_lb_flowcontrol_highest_executing_seats",
            "The most seats that the connections of a priority level held in the latest second.",
            gauge,
            |level| level.highest.into(),
        ),
        of_levels(
            "node_lb_flowcontrol_recovered_connections_total",
            "Seats taken without regard to the limit, by connections in progress.",
            counter,
            |level| level.recovered,
        ),
        of_levels(
            "node_lb_flowcontrol_exempted_connections_total",
            "Connections let in above the limit and not counted, because the cluster depends on their \
             Service.",
            counter,
            |level| level.exempted,
        ),
        of_limited(
            "node_lb_flowcontrol_slow_handshakes",
            "Seats of TCP handshakes in a priority level that have been open for half a second at least.",
            |level| level.slow_handshakes.into(),
        ),
        of_limited(
            "node_lb_flowcontrol_pressed",
            "1 while so many handshakes are slow that they take no seats.",
            |level| level.is_pressed.into(),
        ),
        family(
            "node_lb_flowcontrol_connection_seats",
            "Seats of its priority level that each connection of a flow schema takes.",
            MetricType::GAUGE,
            schemas
                .iter()
                .map(|schema| schema.metric(gauge, schema.seats.into())),
        ),
        family(
            "node_lb_flowcontrol_dispatched_connections_total",
            "Connections let in, by flow schema.",
            MetricType::COUNTER,
            schemas.iter().map(|schema| schema.counter(schema.admitted)),
        ),
        family(
            "node_lb_flowcontrol_over_limit_connections_total",
            "Connections let in above the limit, because it is only audited, by flow schema.",
            MetricType::COUNTER,
            schemas.iter().map(|schema| schema.counter(schema.over)),
        ),
        family(
            "node_lb_flowcontrol_rejected_connections_total",
            "Connections refused, by flow schema and reason.",
            MetricType::COUNTER,
            schemas.iter().flat_map(SchemaCount::rejected),
        ),
        family(
            "node_lb_flowcontrol_waited_connections_total",
            "Connections let in that had to wait for a seat, by flow schema.",
            MetricType::COUNTER,
            schemas
                .iter()
                .map(|schema| schema.counter(schema.waited.let_in.number())),
        ),
        family(
            "node_lb_flowcontrol_connection_wait_duration_seconds",
            "For how long connections waited for a seat, by flow schema and by whether they were let in at \
             the end; schemas of which none waited are left out.",
            MetricType::HISTOGRAM,
            schemas.iter().flat_map(SchemaCount::waits),
        ),
        family(
            "node_lb_flowcontrol_uncounted_connections_total",
            "Connections let in that are not counted in their flow, because there was no room for it, by \
             flow schema.",
            MetricType::COUNTER,
            schemas
                .iter()
                .map(|schema| schema.counter(schema.uncounted)),
        ),
        family(
            "node_lb_flowcontrol_expired_connections_total",
            "Connections that ran into a deadline, or would have if it were not only audited, by flow \
             schema and deadline.",
            MetricType::COUNTER,
            schemas.iter().flat_map(SchemaCount::expired),
        ),
        family(
            "node_lb_flowcontrol_unclassified_addresses",
            "Addresses of Services that there was no room to classify; their connections belong to the \
             level catch-all.",
            MetricType::GAUGE,
            unclassified.into_iter(),
        ),
    ]
}
