//! The sections of the documentation that messages name: one home for their addresses. A test looks whether each is
//! there.

use std::fmt;

use serde::{Serialize, Serializer};

macro_rules! sections {
    ($($name:ident = $address:literal,)*) => {
        /// A section of the documentation that says more of what a message is about. It is shown as its page's place in
        /// the repository, `#` and its name; on the site it has the same place, with `.html` for `.md`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Section {
            $(#[doc = concat!("`docs/", $address, "`")] $name,)*
        }

        impl Section {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its place below `docs/`.
            fn address(self) -> &'static str {
                match self {
                    $(Self::$name => $address,)*
                }
            }
        }
    };
}

sections! {
    // What an alert tells of as well.
    NoAgent = "alerts.md#nodelbnoagent",
    NotReady = "alerts.md#nodelbagentnotready",
    Stuck = "alerts.md#nodelbagentstuck",
    DataPlaneChanged = "alerts.md#nodelbdataplanechanged",
    TestPacketsDiffer = "alerts.md#nodelbtestpacketsdiffer",
    NotProgrammed = "alerts.md#nodelbservicesnotprogrammed",
    MapFull = "alerts.md#nodelbmapnearlyfull",
    FlowTableFull = "alerts.md#nodelbflowtablenearlyfull",
    ServicePortFills = "alerts.md#nodelbserviceportfillsflowtable",
    EndpointsFail = "alerts.md#nodelbendpointsfail",
    HalfOpenFlood = "alerts.md#nodelbhalfopenflood",
    ConnectionLimit = "alerts.md#nodelbconnectionlimitreached",
    LevelFull = "alerts.md#nodelbadmissionrefuses",
    HealthChecks = "alerts.md#nodelbhealthcheckserverfailed",
    // What none tells of.
    AtLimit = "troubleshooting.md#a-service-port-is-under-pressure-or-at-its-limit",
    NodeProblem = "troubleshooting.md#the-agent-does-not-start-or-reports-a-problem",
    SourceProblem = "troubleshooting.md#the-source-of-services-has-a-problem",
    AdmissionObjects = "admission.md#what-is-checked",
    Handshakes = "admission.md#limits-of-connections",
    // What a node needs.
    ApiServer = "api-server.md#reaching-it",
    KubeProxy = "migration.md#to-node-lb-without-cutting-connections",
    Rights = "deploy.md#what-the-agent-may-do",
    Devices = "configuration.md#devices-and-programs",
    Cluster = "configuration.md#the-cluster-and-this-node",
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "docs/{}", self.address())
    }
}

impl Serialize for Section {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
