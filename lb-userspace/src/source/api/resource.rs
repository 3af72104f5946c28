//! The requests to the API server: the resources with their selectors, and their URLs.

use std::time::Duration;

use form_urlencoded::Serializer;
use lb_objects::Kind;

/// Objects per page of a list.
const PAGE: &str = "500";
/// A watch is requested for this long, and at random for up to twice as long.
const WATCH_TIME: Duration = Duration::from_secs(300);

/// A resource, and which of its objects are requested: those that kube-proxy selects, so that
/// others are not even sent.
#[derive(Clone, Debug)]
pub struct Resource {
    pub kind: Kind,
    /// The name in URLs and roles.
    pub name: &'static str,
    path: &'static str,
    selectors: Vec<(&'static str, String)>,
}

impl Resource {
    /// Services without those of other service proxies and headless ones.
    pub fn services() -> Self {
        Self {
            kind: Kind::Service,
            name: Kind::Service.resource(),
            path: "/api/v1/services",
            selectors: vec![
                (
                    "labelSelector",
                    "!service.kubernetes.io/service-proxy-name".to_owned(),
                ),
                ("fieldSelector", "spec.clusterIP!=None".to_owned()),
            ],
        }
    }

    /// EndpointSlices without those of headless Services.
    pub fn endpoint_slices() -> Self {
        Self {
            kind: Kind::EndpointSlice,
            name: Kind::EndpointSlice.resource(),
            path: "/apis/discovery.k8s.io/v1/endpointslices",
            selectors: vec![(
                "labelSelector",
                "!service.kubernetes.io/headless".to_owned(),
            )],
        }
    }

    /// The Node with this name.
    pub fn node(name: &str) -> Self {
        Self {
            kind: Kind::Node,
            name: Kind::Node.resource(),
            path: "/api/v1/nodes",
            selectors: vec![("fieldSelector", format!("metadata.name={name}"))],
        }
    }

    /// The pods of the Node with this name.
    pub fn pods(node: &str) -> Self {
        Self {
            kind: Kind::Pod,
            name: Kind::Pod.resource(),
            path: "/api/v1/pods",
            selectors: vec![("fieldSelector", format!("spec.nodeName={node}"))],
        }
    }

    /// All Namespaces, whose annotations may limit connections.
    pub fn namespaces() -> Self {
        Self {
            kind: Kind::Namespace,
            name: Kind::Namespace.resource(),
            path: "/api/v1/namespaces",
            selectors: Vec::new(),
        }
    }

    /// The networks from which ClusterIPs are taken.
    pub fn service_cidrs() -> Self {
        Self {
            kind: Kind::ServiceCidr,
            name: Kind::ServiceCidr.resource(),
            path: "/apis/networking.k8s.io/v1/servicecidrs",
            selectors: Vec::new(),
        }
    }

    /// The objects of a kind of connection admission.
    pub fn of_admission(kind: Kind) -> Self {
        Self {
            kind,
            name: kind.resource(),
            path: match kind {
                Kind::PriorityLevel => "/apis/node-lb.io/v1alpha1/prioritylevels",
                _ => "/apis/node-lb.io/v1alpha1/flowschemas",
            },
            selectors: Vec::new(),
        }
    }

    /// Path of the status of an object that has no namespace.
    pub fn status(&self, name: &str) -> String {
        format!("{}/{name}/status", self.path)
    }

    /// Path and query of a request.
    pub fn uri(&self, request: &Request<'_>) -> String {
        // The query starts after the path.
        let start = self.path.len() + 1;
        let mut query = Serializer::for_suffix(format!("{}?", self.path), start);
        query.extend_pairs(&self.selectors);
        match request {
            Request::Page { from, token: None } => {
                query
                    .append_pair("limit", PAGE)
                    .append_pair("resourceVersion", from);
                // Without this, a list with a limit is made at exactly that version. A watch that
                // got a 410 could not continue from it either.
                if !matches!(*from, "" | "0") {
                    query.append_pair("resourceVersionMatch", "NotOlderThan");
                }
                &mut query
            }
            Request::Page {
                token: Some(token), ..
            } => query
                .append_pair("limit", PAGE)
                .append_pair("continue", token),
            Request::Stream { from, time } => watch(&mut query, from, *time)
                .append_pair("sendInitialEvents", "true")
                .append_pair("resourceVersionMatch", "NotOlderThan"),
            Request::Watch { from, time } => watch(&mut query, from, *time),
        };
        query.finish()
    }
}

/// A request for a [`Resource`].
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// A page of a list at least as new as `from`: the first one, or the one that `token` names.
    Page {
        from: &'a str,
        token: Option<&'a str>,
    },
    /// All objects, at least as new as `from`, and then their changes (KEP-3157).
    Stream { from: &'a str, time: Duration },
    /// Changes after `from`.
    Watch { from: &'a str, time: Duration },
}

impl Request<'_> {
    /// The verb in roles and metrics.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Page { .. } => "list",
            Self::Stream { .. } | Self::Watch { .. } => "watch",
        }
    }
}

/// How long a watch is to last: a random time, so that the watches of a cluster do not all end at
/// once. In whole seconds, because the API server accepts no fractions.
pub fn watch_time() -> Duration {
    let more = super::backoff::up_to(WATCH_TIME);
    WATCH_TIME + Duration::from_secs(more.as_secs())
}

fn watch<'a>(
    query: &'a mut Serializer<'static, String>,
    from: &str,
    time: Duration,
) -> &'a mut Serializer<'static, String> {
    query
        .append_pair("watch", "true")
        .append_pair("allowWatchBookmarks", "true")
        .append_pair("timeoutSeconds", &time.as_secs().to_string())
        .append_pair("resourceVersion", from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_spelled_as_the_api_server_reads_them() {
        let time = Duration::from_secs(301);
        let services = Resource::services();
        let page = services.uri(&Request::Page {
            from: "0",
            token: None,
        });
        assert_eq!(
            page,
            "/api/v1/services?labelSelector=%21service.kubernetes.io%2Fservice-proxy-name\
             &fieldSelector=spec.clusterIP%21%3DNone&limit=500&resourceVersion=0"
        );
        let newer = services.uri(&Request::Page {
            from: "560",
            token: None,
        });
        assert!(
            newer.ends_with("&resourceVersion=560&resourceVersionMatch=NotOlderThan"),
            "{newer}"
        );
        let newest = services.uri(&Request::Page {
            from: "",
            token: None,
        });
        assert!(newest.ends_with("&resourceVersion="), "{newest}");
        let next = services.uri(&Request::Page {
            from: "0",
            token: Some("a+b"),
        });
        assert!(next.ends_with("&limit=500&continue=a%2Bb"), "{next}");
        let stream = Resource::endpoint_slices().uri(&Request::Stream { from: "", time });
        assert_eq!(
            stream,
            "/apis/discovery.k8s.io/v1/endpointslices?\
             labelSelector=%21service.kubernetes.io%2Fheadless&watch=true&allowWatchBookmarks=true\
             &timeoutSeconds=301&resourceVersion=&sendInitialEvents=true\
             &resourceVersionMatch=NotOlderThan"
        );
        let watch = Resource::node("n").uri(&Request::Watch { from: "5", time });
        assert_eq!(
            watch,
            "/api/v1/nodes?fieldSelector=metadata.name%3Dn&watch=true&allowWatchBookmarks=true\
             &timeoutSeconds=301&resourceVersion=5"
        );
    }
}
