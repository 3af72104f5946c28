//! Any bytes as a file of admission's objects: they are refused with reasons, or in force and
//! valid. Connections are then classified equally by the plain and the compiled search.
#![no_main]

use std::path::Path;

use lb_admission::{
    classify::{
        Classifier, Connection, Distinguisher, Identity, MAX_DISTINGUISHER, ServiceFrontend,
    },
    configuration::{Configuration, InForce},
    objects::Manifest,
    schema::Ingress,
    shuffle::Dealer,
};
use lb_objects::Protocol;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for name in ["objects.yaml", "objects.json"] {
        let Ok(manifest) = Manifest::parse(Path::new(name), bytes) else {
            continue;
        };
        let mut configuration = Configuration::default();
        for document in manifest.documents {
            match document.object {
                Ok(object) => drop(configuration.apply(&object)),
                Err(errors) => {
                    assert!(!errors.is_empty());
                    configuration.refuse(document.reference, errors);
                }
            }
        }
        configuration.conditions(u32::MAX);
        check(&configuration.in_force());
    }
});

fn check(in_force: &InForce) {
    for (level, limits) in in_force.levels.iter().zip(in_force.limits(u32::MAX)) {
        assert!(limits.min <= limits.nominal && limits.nominal <= limits.max);
        if let Some(queuing) = level.queuing() {
            let size = |number: u32| i32::try_from(number).expect("bounded");
            Dealer::new(size(queuing.queues), size(queuing.hand_size)).expect("valid sizes");
        }
    }

    let identity = Identity {
        namespace: "a".to_owned(),
        service_account: "default".to_owned(),
        ..Identity::default()
    };
    let mut classifier = Classifier::new(in_force);
    for ingress in [Ingress::External, Ingress::Pod, Ingress::Node] {
        for source in ["10.0.0.1", "192.0.2.1", "2001:db8::1", "::"] {
            for identity in [None, Some(&identity)] {
                let connection = Connection {
                    ingress,
                    source: source.parse().expect("an address"),
                    identity,
                    destination: ServiceFrontend {
                        namespace: "a",
                        service: "a",
                        port: 80,
                        protocol: Protocol::Tcp,
                        address: "10.96.0.1".parse().ok(),
                    },
                };
                let index = in_force.classify(&connection);
                let key = classifier.key(&connection);
                assert_eq!(classifier.classify(&key), index);
                let active = &in_force.schemas[index];
                let level = &in_force.levels[active.level];
                let flow = Distinguisher::new(&active.schema, level, &connection);
                flow.text(&mut [0; MAX_DISTINGUISHER]);
            }
        }
    }
}
