//! The kinds of requests that the front distinguishes, and which answers it breaks.

use std::time::Duration;

use hyper::Uri;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The first page of a list.
    List,
    /// Another page of a list.
    NextPage,
    /// All objects and then their changes (KEP-3157).
    StreamedList,
    /// Changes.
    Watch,
    /// Anything else.
    Other,
}

/// A received request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub asked: Asked,
    /// The resource's name in URLs, such as `services`.
    pub resource: String,
    /// The code of the answer; `None` if there was no answer.
    pub code: Option<u16>,
}

impl Request {
    /// What a request asks for, from its path and query.
    pub(super) fn read(uri: &Uri) -> Self {
        let query = uri.query().unwrap_or_default();
        let has = |pair: &str| query.split('&').any(|found| found == pair);
        let resource = uri.path().rsplit('/').next().unwrap_or_default();
        let asked = match resource {
            "services" | "endpointslices" | "nodes" => match has("watch=true") {
                true if has("sendInitialEvents=true") => Asked::StreamedList,
                true => Asked::Watch,
                false if query.contains("continue=") => Asked::NextPage,
                false => Asked::List,
            },
            _ => Asked::Other,
        };
        Self {
            asked,
            resource: resource.to_owned(),
            code: None,
        }
    }
}

/// What is done to an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The API server is not asked. The answer has this code and, if given, a Retry-After in
    /// seconds.
    Answer { code: u16, retry_after: Option<u32> },
    /// The connection ends instead of an answer.
    Cut,
    /// The answer begins later.
    Delay(Duration),
    /// The connection ends within this event of a watch (from 1).
    CutWithin { event: usize },
    /// This event of a watch (from 1) is followed by a line that is no event.
    Garbage { after: usize },
    /// Every event of a watch comes twice.
    Twice,
    /// Events of a watch come in pairs, the later one first.
    Swapped,
}

/// A fault, and the requests that it applies to.
#[derive(Clone, Debug)]
pub struct Rule {
    fault: Fault,
    asked: Vec<Asked>,
    resource: Option<String>,
    /// How many more requests it applies to.
    left: usize,
}

impl Rule {
    /// Applies to every request of these kinds.
    pub fn new(fault: Fault, asked: &[Asked]) -> Self {
        Self {
            fault,
            asked: asked.to_vec(),
            resource: None,
            left: usize::MAX,
        }
    }

    /// Applies only to requests for this resource.
    pub fn resource(mut self, resource: &str) -> Self {
        self.resource = Some(resource.to_owned());
        self
    }

    /// Applies only to the next `count` requests.
    pub fn times(mut self, count: usize) -> Self {
        self.left = count;
        self
    }

    /// The fault for a request to which this rule applies. This uses up one of its times.
    pub(super) fn take(&mut self, request: &Request) -> Option<Fault> {
        if !self.meets(request) {
            return None;
        }
        if self.left != usize::MAX {
            self.left -= 1;
        }
        Some(self.fault.clone())
    }

    /// How many more requests it applies to.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    fn meets(&self, request: &Request) -> bool {
        let resource = self.resource.as_ref();
        self.left > 0
            && self.asked.contains(&request.asked)
            && resource.is_none_or(|resource| *resource == request.resource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart_by_path_and_query() {
        let asked = |uri: &str| {
            let request = Request::read(&uri.parse().unwrap());
            (request.asked, request.resource)
        };
        let services = || "services".to_owned();
        let page = asked("/api/v1/services?limit=500&resourceVersion=0");
        assert_eq!(page, (Asked::List, services()));
        let page = asked("/api/v1/services?limit=500&continue=abc");
        assert_eq!(page, (Asked::NextPage, services()));
        let watch = asked("/api/v1/services?watch=true&resourceVersion=7");
        assert_eq!(watch, (Asked::Watch, services()));
        let stream = asked("/api/v1/services?watch=true&sendInitialEvents=true");
        assert_eq!(stream, (Asked::StreamedList, services()));
        assert_eq!(asked("/readyz").0, Asked::Other);
    }

    #[test]
    fn rules_meet_what_they_name_as_often_as_they_say() {
        let rule = Rule::new(Fault::Cut, &[Asked::Watch]).resource("nodes");
        let request = |asked, resource: &str| Request {
            asked,
            resource: resource.to_owned(),
            code: None,
        };
        assert!(rule.meets(&request(Asked::Watch, "nodes")));
        assert!(!rule.meets(&request(Asked::Watch, "services")));
        assert!(!rule.meets(&request(Asked::List, "nodes")));
        let spent = rule.times(0);
        assert!(!spent.meets(&request(Asked::Watch, "nodes")));
    }
}
