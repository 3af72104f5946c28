//! Programs that an agent loads before it has the lock of the pins. The kernel may take long to
//! accept them, and meanwhile another agent keeps the maps up to date.

use std::collections::BTreeMap;

use aya::maps::MapData;

use super::{LoadError, Loaded, Settings, load_around, shapes};
use crate::pins::{MapPins, Pins};

/// Programs around the maps that were pinned when they were loaded.
#[derive(Debug)]
pub struct Ahead {
    loaded: Loaded,
    maps: MapIds,
}

/// The kernel's number of each pinned map.
type MapIds = BTreeMap<String, u32>;

impl Ahead {
    /// Loads programs as [`load()`](super::load()) does, but makes no maps: `None` if one is not
    /// pinned, or if another one takes its place meanwhile.
    ///
    /// # Errors
    ///
    /// As [`load()`](super::load()).
    pub fn load(
        object: &[u8],
        pins: &MapPins,
        programs: &[&str],
        settings: &Settings<'_>,
    ) -> Result<Option<Self>, LoadError> {
        let maps = ids(pins)?;
        let shapes = shapes(object, settings)?;
        let mut wanted = shapes.keys().filter_map(|name| settings.pin(name));
        if !wanted.all(|pin| maps.contains_key(pin)) {
            return Ok(None);
        }
        let loaded = load_around(object, pins, programs, settings, &shapes)?;
        let is_same = ids(pins)? == maps;
        Ok(is_same.then_some(Self { loaded, maps }))
    }

    /// Keeps programs for later, when another agent may have changed the maps.
    ///
    /// # Errors
    ///
    /// If a pinned map cannot be opened.
    pub fn keep(loaded: Loaded, pins: &MapPins) -> Result<Self, LoadError> {
        let maps = ids(pins)?;
        Ok(Self { loaded, maps })
    }

    /// The programs, for as long as these maps last.
    pub(crate) fn into_loaded(self) -> Loaded {
        self.loaded
    }

    /// Whether the maps are still the same.
    ///
    /// # Errors
    ///
    /// If a pinned map cannot be opened.
    pub fn fits(&self, pins: &MapPins) -> Result<bool, LoadError> {
        Ok(ids(pins)? == self.maps)
    }

    /// The programs, if they fit; to be asked with the lock.
    ///
    /// # Errors
    ///
    /// If a pinned map cannot be opened.
    pub fn take_over(self, pins: &Pins) -> Result<Option<Loaded>, LoadError> {
        let fits = self.fits(&pins.of_maps())?;
        Ok(fits.then_some(self.loaded))
    }
}

fn ids(pins: &MapPins) -> Result<MapIds, LoadError> {
    let mut ids = MapIds::new();
    for name in pins.names()? {
        let path = pins.path(&name);
        let id = match MapData::from_pin(&path).and_then(|map| map.info()) {
            Ok(info) => info.id(),
            Err(source) => return Err(LoadError::Pinned { path, source }),
        };
        ids.insert(name, id);
    }
    Ok(ids)
}
