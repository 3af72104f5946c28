//! How many nanoseconds it takes to find the flow schema of a connection.

use std::{
    hint::black_box,
    net::{IpAddr, Ipv4Addr},
    time::Instant,
};

use anyhow::{Result, ensure};
use lb_admission::{
    classify::{Classifier, Connection, Key, ServiceFrontend},
    configuration::{ActiveSchema, InForce},
    level::Level,
    schema::{Destination, Ingress, Listed, Rule, Schema, Services, Source},
};
use lb_objects::Protocol;

use crate::cost::{BATCH, BATCHES, median};

/// Nanoseconds per connection of each way to find the same schema.
pub struct Cost {
    /// By the compiled tables, as for a first packet.
    pub lookup: f64,
    /// By the ordered search.
    pub search: f64,
}

/// Looks up connections of all schemas in turn. Each schema has its own rule, for a source network
/// and a Service.
///
/// # Errors
/// If the two ways disagree.
pub fn measure(schemas: u16) -> Result<Cost> {
    let names: Vec<String> = (0..schemas)
        .map(|number| format!("service-{number}"))
        .collect();
    let mut active: Vec<Schema> = (0..schemas)
        .zip(&names)
        .map(|(n, name)| schema(n, name))
        .collect();
    active.push(Schema::catch_all());
    let active = active
        .into_iter()
        .map(|schema| ActiveSchema { schema, level: 0 });
    let in_force = InForce {
        levels: vec![Level::catch_all()],
        schemas: active.collect(),
        dangling: Vec::new(),
    };
    let connections: Vec<Connection<'_>> = (0..schemas)
        .zip(&names)
        .map(|(number, name)| connection(number, name))
        .collect();
    let mut classifier = Classifier::new(&in_force);
    let keys: Vec<Key> = connections
        .iter()
        .map(|connection| classifier.key(connection))
        .collect();
    for (index, (key, connection)) in keys.iter().zip(&connections).enumerate() {
        ensure!(
            classifier.classify(key) == index && in_force.classify(connection) == index,
            "schema {index} is not found"
        );
    }
    Ok(Cost {
        lookup: time(&keys, |key| classifier.classify(key)),
        search: time(&connections, |connection| in_force.classify(connection)),
    })
}

/// Nanoseconds of one call.
fn time<T>(questions: &[T], answer: impl Fn(&T) -> usize) -> f64 {
    let mut questions = questions.iter().cycle();
    let batch = |_| {
        let start = Instant::now();
        for question in questions.by_ref().take(BATCH as usize) {
            black_box(answer(black_box(question)));
        }
        start.elapsed().as_nanos() as f64 / f64::from(BATCH)
    };
    median((0..BATCHES).map(batch).collect())
}

fn address(number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(10, high, low, 1).into()
}

fn schema(number: u16, service: &str) -> Schema {
    let only = |name: &str| Listed::Only(vec![name.to_owned()]);
    let mut rule = Rule::new(Destination {
        service: Some(Services {
            namespaces: only("shop"),
            names: only(service),
        }),
        ..Destination::any()
    });
    rule.sources = vec![Source::Network {
        network: ipnet::IpNet::new_assert(address(number), 24).trunc(),
        except: Vec::new(),
    }];
    Schema {
        rules: vec![rule],
        ..Schema::new(service, 1000, "catch-all")
    }
}

fn connection(number: u16, service: &str) -> Connection<'_> {
    Connection {
        ingress: Ingress::External,
        source: address(number),
        identity: None,
        destination: ServiceFrontend {
            namespace: "shop",
            service,
            port: 80,
            protocol: Protocol::Tcp,
            address: None,
        },
    }
}
