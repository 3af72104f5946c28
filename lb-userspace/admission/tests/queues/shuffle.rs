//! Hands of queues: their cards, their possible sizes, and how well they keep flows apart.

use std::collections::BTreeMap;

use lb_admission::{
    flow_hash::FlowHasher,
    shuffle::{Dealer, required_entropy_bits},
};
use serde::Deserialize;

use crate::{
    covered::{covered_probability, expected_covered},
    vectors::{self, assert_close},
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Dealt {
    hash: u64,
    deck_size: i32,
    hand_size: i32,
    hand: Vec<u32>,
}

#[test]
fn hands_are_dealt_as_by_upstream() {
    let cases: Vec<Dealt> = vectors::at("/a_shuffle_sharding/vectors");
    assert!(!cases.is_empty());
    for case in cases {
        let dealer = Dealer::new(case.deck_size, case.hand_size).unwrap();
        assert_eq!(dealer.deal(case.hash)[..], case.hand, "{:#x}", case.hash);
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Hashed {
    flow_schema: String,
    distinguisher: String,
    hash: u64,
    hands: BTreeMap<String, Vec<u32>>,
}

#[test]
fn flows_are_hashed_as_by_upstream() {
    let cases: Vec<Hashed> = vectors::at("/a_shuffle_sharding/flowHash/vectors");
    assert!(!cases.is_empty());
    for case in cases {
        let distinguisher = case.distinguisher.as_bytes();
        let hash = FlowHasher::Exact.hash(&case.flow_schema, distinguisher);
        assert_eq!(
            hash, case.hash,
            "{} {}",
            case.flow_schema, case.distinguisher
        );
        for (sizes, hand) in case.hands {
            let (deck, size) = sizes.split_once('/').unwrap();
            let dealer = Dealer::new(deck.parse().unwrap(), size.parse().unwrap()).unwrap();
            assert_eq!(dealer.deal(hash)[..], hand, "{sizes}");
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Uniform {
    deck_size: i32,
    hand_size: i32,
    hash_range: [u64; 2],
    every_unordered_hand_count_between: [usize; 2],
}

#[test]
fn hands_are_uniform() {
    let cases: Vec<Uniform> = vectors::at("/a_shuffle_sharding/uniformity");
    assert!(!cases.is_empty());
    for case in cases {
        let dealer = Dealer::new(case.deck_size, case.hand_size).unwrap();
        // Counted by the sorted cards, as digits of a number.
        let (deck, size) = (case.deck_size as usize, case.hand_size as usize);
        let mut counts = vec![0_usize; deck.pow(case.hand_size as u32)];
        for hash in case.hash_range[0]..case.hash_range[1] {
            let mut hand = dealer.deal(hash);
            hand.sort_unstable();
            let key = hand.iter().fold(0, |key, &card| key * deck + card as usize);
            counts[key] += 1;
        }
        counts.retain(|&count| count > 0);
        let possible = (0..size).fold(1, |hands, i| hands * (deck - i) / (i + 1));
        assert_eq!(counts.len(), possible, "every hand is dealt");
        let [least, most] = case.every_unordered_hand_count_between;
        assert!(counts.iter().all(|count| (least..=most).contains(count)));
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entropy {
    deck_size: i32,
    hand_size: i32,
    bits: u32,
}

#[test]
fn hands_need_entropy_as_upstream_says() {
    let cases: Vec<Entropy> = vectors::at("/a_shuffle_sharding/requiredEntropyBits/vectors");
    assert!(!cases.is_empty());
    for case in cases {
        let bits = required_entropy_bits(case.deck_size, case.hand_size);
        assert_eq!(bits, case.bits, "{}/{}", case.deck_size, case.hand_size);
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sizes {
    deck_size: i32,
    hand_size: i32,
    accept: bool,
    reason: String,
}

#[test]
fn impossible_sizes_are_refused() {
    let cases: Vec<Sizes> = vectors::at("/a_shuffle_sharding/dealerConfig");
    assert!(!cases.is_empty());
    for case in cases {
        match Dealer::new(case.deck_size, case.hand_size) {
            Ok(_) => assert!(case.accept, "{}", case.reason),
            Err(error) => assert_eq!((false, error.to_string()), (case.accept, case.reason)),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KepRow {
    hands: u32,
    expected_unique_queues: f64,
    prob_next_covered: f64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Isolation {
    hand_size: u32,
    queues: u32,
    elephants: BTreeMap<u32, f64>,
    expected_queues_hit_by: BTreeMap<u32, f64>,
}

#[test]
fn hands_keep_flows_apart_as_well_as_documented() {
    let rows: Vec<KepRow> = vectors::at("/f_collision_probabilities/kepProgram/rows");
    assert!(!rows.is_empty());
    for row in rows {
        let what = format!("{} hands", row.hands);
        let covered = covered_probability(256, 7, row.hands);
        assert_close(covered, row.prob_next_covered, 1e-9, &what);
        let queues = expected_covered(256, 7, row.hands);
        assert_close(queues, row.expected_unique_queues, 1e-9, &what);
    }

    let example: f64 = vectors::at("/f_collision_probabilities/kepExample/probability");
    assert_close(covered_probability(128, 6, 1), example, 1e-9, "KEP");

    let table: Vec<Isolation> = vectors::at("/f_collision_probabilities/table");
    assert!(!table.is_empty());
    for row in table {
        let what = format!("{} of {}", row.hand_size, row.queues);
        for (heavy, probability) in row.elephants {
            let covered = covered_probability(row.queues, row.hand_size, heavy);
            assert_close(covered, probability, 1e-9, &what);
        }
        for (heavy, queues) in row.expected_queues_hit_by {
            let expected = expected_covered(row.queues, row.hand_size, heavy);
            assert_close(expected, queues, 1e-9, &what);
        }
    }
}
