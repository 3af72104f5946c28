//! What is kept between two starts.

use std::fs;

use aya::maps::{MapData, MapType};
use lb_datapath::{
    OBJECT, Pins, Settings, cleanup, load,
    load::{Ahead, LoadError},
    pins::{MapPins, PinError},
};
use lb_tests::{
    PinRoot,
    programs::{VERSION, start},
};

#[test]
fn maps_are_adopted() {
    let root = PinRoot::new();
    let ids = |pins: &Pins| {
        let loaded = start(pins, &[]);
        let ids: Vec<u32> = pins
            .maps()
            .unwrap()
            .iter()
            .map(|name| loaded.map(name).unwrap().info().unwrap().id())
            .collect();
        assert!(!ids.is_empty());
        ids
    };
    let first = ids(&root.pins(VERSION));
    assert_eq!(first, ids(&root.pins(VERSION)));
}

/// As an agent does that stands by: another one has the lock.
#[test]
fn programs_that_were_loaded_ahead_are_for_the_maps_of_then() {
    let root = PinRoot::new();
    let pins = root.pins(VERSION);
    let maps = MapPins::below(root.path(), VERSION);
    let ahead = || Ahead::load(OBJECT, &maps, &[], &Settings::default()).unwrap();
    assert!(ahead().is_none(), "there are no maps yet");
    assert!(pins.maps().unwrap().is_empty(), "and none are made");

    let first = start(&pins, &[]);
    let programs = ahead().unwrap();
    let kept = Ahead::keep(first, &maps).unwrap();
    for programs in [programs, kept] {
        assert!(programs.fits(&maps).unwrap());
        let taken = programs.take_over(&pins).unwrap();
        assert!(taken.is_some());
    }

    let programs = ahead().unwrap();
    let (name, _) = resizable(&pins);
    assert!(pins.remove_map(&name).unwrap());
    assert!(ahead().is_none(), "one is missing");
    drop(start(&pins, &[]));
    assert!(!programs.fits(&maps).unwrap(), "another {name}");
    assert!(programs.take_over(&pins).unwrap().is_none());
}

#[test]
fn a_map_of_another_shape_is_refused_with_a_way_out() {
    let root = PinRoot::new();
    let pins = root.pins(VERSION);
    drop(start(&pins, &[]));
    let (name, entries) = resizable(&pins);

    let settings = Settings::default().max_entries(&name, entries * 2);
    let error = load(OBJECT, &pins, &[], &settings).unwrap_err();
    assert!(matches!(error, LoadError::MapDiffers { .. }), "{error}");
    let text = error.to_string();
    for part in [
        &name,
        &format!("of {entries} entries"),
        &format!("of {} entries", entries * 2),
        "node-lb cleanup",
        "--bpf-root",
    ] {
        assert!(text.contains(part), "{text:?} without {part:?}");
    }
    // The start was refused before anything changed, so the previous settings still work.
    start(&pins, &[]);
}

#[test]
fn maps_are_made_as_large_as_told() {
    let root = PinRoot::new();
    let pins = root.pins(VERSION);
    drop(start(&pins, &[]));
    let (name, entries) = resizable(&pins);
    drop(pins);
    cleanup(root.path()).unwrap();

    let pins = root.pins(VERSION);
    let settings = Settings::default().max_entries(&name, entries * 2);
    let loaded = load(OBJECT, &pins, &[], &settings).unwrap();
    let info = loaded.map(&name).unwrap().info().unwrap();
    assert_eq!(info.max_entries(), entries * 2);
}

/// The smallest hash map or array of the object, with its number of entries.
fn resizable(pins: &Pins) -> (String, u32) {
    pins.maps()
        .unwrap()
        .into_iter()
        .filter_map(|name| {
            let info = MapData::from_pin(pins.map(&name)).unwrap().info().unwrap();
            let kind = info.map_type().unwrap();
            matches!(kind, MapType::Hash | MapType::Array).then(|| (name, info.max_entries()))
        })
        .min_by_key(|(_, entries)| *entries)
        .unwrap()
}

#[test]
fn names_that_the_object_lacks_are_errors() {
    let root = PinRoot::new();
    let pins = root.pins(VERSION);
    let settings = Settings::default();
    let error = load(OBJECT, &pins, &["no_such_program"], &settings).unwrap_err();
    assert!(error.to_string().contains("no_such_program"), "{error}");
    let settings = Settings::default().max_entries("NO_SUCH_MAP", 1);
    let error = load(OBJECT, &pins, &[], &settings).unwrap_err();
    assert!(error.to_string().contains("NO_SUCH_MAP"), "{error}");
    let settings = Settings::default().global("NO_SUCH_GLOBAL", &1u64);
    let error = load(OBJECT, &pins, &[], &settings).unwrap_err();
    assert!(matches!(error, LoadError::Object(_)), "{error}");
}

#[test]
fn one_agent_at_a_time() {
    let root = PinRoot::new();
    let _pins = root.pins(VERSION);
    let error = Pins::open(root.path(), VERSION).unwrap_err();
    assert!(matches!(error, PinError::InUse { .. }), "{error}");
}

#[test]
fn other_layouts_are_refused_and_cleaned_up() {
    let root = PinRoot::new();
    drop(start(&root.pins(VERSION), &[]));
    let error = Pins::open(root.path(), VERSION + 1).unwrap_err();
    assert!(matches!(error, PinError::OtherVersion { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("/v7 ") && text.contains("node-lb cleanup"),
        "{text}"
    );

    cleanup(root.path()).unwrap();
    Pins::open(root.path(), VERSION + 1).unwrap();
}

#[test]
fn what_others_put_there_is_neither_used_nor_removed() {
    let root = PinRoot::new();
    drop(start(&root.pins(VERSION), &[]));
    let theirs = root.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    let error = Pins::open(root.path(), VERSION).unwrap_err();
    assert!(matches!(error, PinError::Foreign { .. }), "{error}");
    let error = cleanup(root.path()).unwrap_err();
    assert!(matches!(error, PinError::Foreign { .. }), "{error}");
    assert!(!root.path().join("v7").exists());
    assert!(theirs.exists());
    fs::remove_dir(&theirs).unwrap();
}
