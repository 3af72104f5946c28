//! What the agent tells users about their Services, as Events.

use lb_objects::{Kind, ObjectName, Problem};
use uuid::Uuid;

use super::{Agent, sync::News};
use crate::{events::Notice, health::service::Problem as HealthProblem, source::Event};

impl Agent {
    /// What `events` say is wrong with Services; empty if Events are not written.
    pub(super) fn refused_services(&self, events: &[Event]) -> Vec<(ObjectName, Problem)> {
        if !self.feed.events.is_on() {
            return Vec::new();
        }
        let problems = events.iter().flat_map(|event| match event {
            Event::Problems { problems, .. } => problems.as_slice(),
            _ => &[],
        });
        problems
            .filter_map(|problem| {
                let object = problem.object.as_ref()?;
                let is_service = object.kind == Kind::Service;
                is_service.then(|| (object.name.clone(), problem.clone()))
            })
            .collect()
    }

    pub(super) fn tell_of_refused(&self, refused: Vec<(ObjectName, Problem)>) {
        for (service, problem) in refused {
            let uid = self.uid(&service);
            self.feed
                .events
                .record(Notice::refused(&service, uid, &problem));
        }
    }

    pub(super) fn tell_of_health_check(&self, problem: &HealthProblem) {
        let uid = self.uid(&problem.service);
        self.feed.events.record(Notice::health_check(problem, uid));
    }

    /// Tells that programs do something else with test packets to a Service than it asks for.
    pub(super) fn tell_of_test_packets(&self, service: &ObjectName) {
        let notice = Notice::test_packets_differ(service, self.uid(service));
        self.feed.events.record(notice);
    }

    /// Tells what became of Services and their ports since the last call.
    pub(super) fn tell_of_service_ports(&mut self) {
        for news in self.syncer.take_news() {
            let notice = match &news {
                News::Waiting(service, reason) => {
                    Notice::not_programmed(service, self.uid(service), *reason)
                }
                News::Programmed(service) => Notice::programmed(service, self.uid(service)),
                News::AtLimit(key, limit) => {
                    let service = &key.name.service;
                    Notice::at_limit(service, self.uid(service), &key.to_string(), *limit)
                }
            };
            self.feed.events.record(notice);
        }
    }

    fn uid(&self, service: &ObjectName) -> Option<Uuid> {
        self.store.service(service)?.uid
    }
}
