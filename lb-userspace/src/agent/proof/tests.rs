use super::*;

fn found(service: &str, found: &str, wanted: &str) -> Discrepancy {
    Discrepancy {
        service: ObjectName::new("shop", service),
        to: "10.96.0.1:80 TCP".to_owned(),
        packet: "a test packet from a pod by veth0 in tc_ingress".to_owned(),
        found: found.to_owned(),
        wanted: wanted.to_owned(),
    }
}

fn catalog(services: usize) -> Catalog {
    let catalog = Catalog::new();
    for index in 0..services {
        let name = ObjectName::new("shop", format!("{index:03}"));
        let plan = ServicePlan {
            service: name.clone(),
            ports: Vec::new(),
            health_checks: Vec::new(),
        };
        catalog.set(&name, Some(Arc::new(plan)));
    }
    catalog
}

#[test]
fn what_differs_counts_if_it_does_so_again() {
    let mut proof = Proof::default();
    let all = BTreeSet::from([found("a", "one", "two"), found("b", "one", "two")]);
    assert_eq!(proof.take(all.clone()), BTreeSet::new());
    let catalog = catalog(3);
    assert!(proof.services(&catalog).is_empty(), "they are gone");
    // Another endpoint was drawn; and this Service is being changed.
    let again = BTreeSet::from([found("a", "other", "two"), found("b", "one", "three")]);
    assert_eq!(
        proof.take(again),
        BTreeSet::from([found("a", "other", "two")])
    );
    assert!(proof.suspects.is_empty());
    assert_eq!(proof.take(BTreeSet::new()), BTreeSet::new());
}

#[test]
fn a_round_comes_to_every_service_once_and_to_suspects_again() {
    let catalog = catalog(2 * SERVICES + 1);
    let mut proof = Proof::default();
    let mut names = Vec::new();
    loop {
        names.extend(
            proof
                .services(&catalog)
                .iter()
                .map(|plan| plan.service.to_string()),
        );
        assert_eq!(proof.take([found("001", "one", "two")].into()), [].into());
        let again = proof.services(&catalog);
        assert_eq!(again.len(), 1);
        assert_eq!(&*again[0].service.name, "001");
        assert_eq!(proof.take([].into()), [].into());
        if !proof.round.more {
            break;
        }
    }
    let all = catalog.all();
    assert!(all.iter().map(|plan| plan.service.to_string()).eq(names));
    proof.end_round(SystemTime::now());
    assert_eq!(proof.services(&catalog).len(), SERVICES);
}

#[test]
fn what_differs_round_after_round_is_a_problem() {
    let mut proof = Proof::new(Duration::from_secs(60));
    let differ = |proof: &mut Proof| {
        proof.round.differences = 3;
        proof.round.described = vec!["10.96.0.1:80 TCP of shop/web".to_owned()];
        proof.end_round(SystemTime::now());
    };
    differ(&mut proof);
    differ(&mut proof);
    assert_eq!(proof.problem(), None);
    differ(&mut proof);
    let problem = proof.problem().unwrap_or_default();
    assert!(problem.starts_with("3 times in a row, "), "{problem}");
    assert!(
        problem.ends_with("10.96.0.1:80 TCP of shop/web"),
        "{problem}"
    );
    let said = proof.report();
    assert_eq!((said.found.differences, said.found.within_an_hour), (9, 9));
    // It is asked again later why there are none.
    proof.give_up("the kernel refuses".to_owned());
    assert!(proof.next().is_some_and(|next| next > Instant::now()));
    assert_eq!(
        proof.report().not_sent.as_deref(),
        Some("the kernel refuses")
    );
    proof.end_round(SystemTime::now());
    assert_eq!((proof.problem(), proof.report().not_sent), (None, None));
}
