//! Where a flow counts: against which limits, and with how many seats.

use super::{
    entry::{BESIDE_SERVICE, SERVICE_BITS, flow_flag},
    limit::{FIRST_LEVEL, LEVEL_NUMBERS, LEVELS, LIMITS, NODE},
};
use crate::opaque::{computed, mask_unless_zero};

/// The limits that a flow counts against: one of a Service or none, and one that Services share, the
/// node's or a priority level's, or none; and how many seats it takes there.
///
/// Bits 0-10 are the Service's, bits 11-18 the number of the shared one: 0 none, 1 the node's, others
/// a level's. Bits 19-22 are how many seats it takes of a level beyond the first one.
///
/// In the endpoint's direction, bits 0-11 are in the upper bits of [`Flow::service`](super::Flow::service),
/// and bits 12-18 in bits 24-30 of [`Flow::flags`](super::Flow::flags). The others are in
/// [`flow_flag::WIDTH`] and, the last one, in the bit above the service's id. Other versions have nothing in
/// some of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place(u32);

impl Place {
    /// None: the flow is not counted.
    pub const NONE: Self = Self(0);
    /// The node's.
    pub const NODE: Self = Self(1 << Self::SHARED);
    /// Bits of a place that are the Service's limit.
    const SHARED: u32 = 11;
    const SHARED_MASK: u32 = LEVEL_NUMBERS as u32 - 1;
    /// Bits of a place below those of its width.
    const WIDTH: u32 = 19;
    const WIDTH_MASK: u32 = 0xf;
    /// Bits of a place that lie above the service's id.
    const LOW: u32 = 32 - BESIDE_SERVICE;
    /// Bits of [`Flow::flags`](super::Flow::flags) below those of a place.
    const FLAGS_SHIFT: u32 = 24;
    const ALL: u32 = (1 << 23) - 1;

    /// The limit of a Service, by its index.
    #[inline(always)]
    pub fn of_service(index: u32) -> Self {
        Self(index & (LIMITS as u32 - 1))
    }

    /// So many seats of a priority level, by the level's number; 0 seats mean one. Level 0 is none.
    #[inline(always)]
    pub fn of_level(number: u32, width: u32) -> Self {
        let number = number & Self::SHARED_MASK;
        let more = width.wrapping_sub(mask_unless_zero(width) as u32 & 1) & Self::WIDTH_MASK;
        Self(number << Self::SHARED | (more & mask_unless_zero(number) as u32) << Self::WIDTH)
    }

    /// The place with this number.
    #[inline(always)]
    pub fn from_u32(number: u32) -> Self {
        Self(number & Self::ALL)
    }

    /// The number of the place.
    #[inline(always)]
    pub fn number(self) -> u32 {
        self.0
    }

    /// Both this one's limits and another's. Only one of them may have a shared one.
    #[inline(always)]
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether it counts against no limit.
    #[inline(always)]
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Index of the Service's limit; 0 means none.
    #[inline(always)]
    pub fn service(self) -> u32 {
        self.0 & (LIMITS as u32 - 1)
    }

    /// Number of the shared limit; 0 means none.
    #[inline(always)]
    fn shared_number(self) -> u32 {
        self.0 >> Self::SHARED & Self::SHARED_MASK
    }

    /// How many seats it takes of the shared limit, if there is one: of the node's one.
    #[inline(always)]
    pub fn width(self) -> u32 {
        (self.0 >> Self::WIDTH & Self::WIDTH_MASK) + 1
    }

    /// Whether flows with these seats are counted at their endpoints: see [`super::load`].
    #[inline(always)]
    pub fn counts_at_endpoint(self) -> bool {
        self.service() != 0
    }

    /// Whether it counts against the node's limit.
    #[inline(always)]
    pub fn has_node(self) -> bool {
        self.shared_number() == Self::NODE.shared_number()
    }

    /// Number of the priority level, 0 if there is none.
    #[inline(always)]
    pub fn level(self) -> u32 {
        match self.shared_number() {
            number if number < FIRST_LEVEL => 0,
            number => number,
        }
    }

    /// Whether it counts against the limit of the node or of a level.
    #[inline(always)]
    pub fn has_shared(self) -> bool {
        self.shared_number() != 0
    }

    /// Index of the limit of the node or of a level. Without either it has no meaning.
    #[inline(always)]
    pub fn shared(self) -> u32 {
        match self.has_node() {
            true => NODE,
            false => LEVELS + self.shared_number(),
        }
    }

    /// The same place, but for the limit of the node or of a level.
    #[inline(always)]
    #[must_use]
    pub fn without_shared(self) -> Self {
        Self(self.service())
    }

    /// The limit of the node or of a level alone.
    #[inline(always)]
    #[must_use]
    pub fn only_shared(self) -> Self {
        Self(self.0 & !(LIMITS as u32 - 1))
    }

    /// Indexes of the limits, and how many seats it takes of each.
    pub fn limits(self) -> impl Iterator<Item = (u32, u32)> {
        let shared = self.has_shared().then(|| (self.shared(), self.width()));
        let service = Some((self.service(), 1)).filter(|(index, _)| *index != 0);
        shared.into_iter().chain(service)
    }

    /// [`Flow::service`](super::Flow::service) of a flow of this service with this place, in the endpoint's
    /// direction.
    #[inline(always)]
    pub fn beside(self, service: u32) -> u32 {
        let last = self.0 >> Self::WIDTH >> 3 & 1;
        service | last << SERVICE_BITS | self.0 << BESIDE_SERVICE
    }

    /// What is beside the [`flow_flag`]s of such a flow.
    #[inline(always)]
    pub fn in_flags(self) -> u32 {
        let counted = self.0 & ((1 << Self::WIDTH) - 1);
        let [first, second, third] = flow_flag::WIDTH;
        let width = self.0 >> Self::WIDTH;
        counted >> Self::LOW << Self::FLAGS_SHIFT
            | (width & 1) << first
            | (width >> 1 & 1) << second
            | (width >> 2 & 1) << third
    }

    /// The place in these two words of a record of the endpoint's direction.
    #[inline(always)]
    pub(super) fn read(service: u32, flags: u32) -> Self {
        let high = (flags & !flow_flag::NUMBERED) >> Self::FLAGS_SHIFT;
        let [first, second, third] = flow_flag::WIDTH;
        let width = flags >> first & 1
            | (flags >> second & 1) << 1
            | (flags >> third & 1) << 2
            | (service >> SERVICE_BITS & 1) << 3;
        // Without a level, others may have left something there. (Of a level's number, which is none of the
        // first two, some bit is here.)
        let is_level = mask_unless_zero(high) as u32;
        let place =
            service >> BESIDE_SERVICE | high << Self::LOW | (width & is_level) << Self::WIDTH;
        // One number from here on, instead of many parts for which there is no room on the stack.
        Self(computed(place.into()) as u32)
    }
}

/// What a flow schema's connections take: so many seats of a priority level, which may
/// [linger](super::linger).
///
/// Bits 0-15 are the level's number, 16-19 the seats, of which 0 means one, and 20-31 for how many
/// [moments](super::slots::Slots::moment) they linger. Earlier versions have the first only.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelSeats(u32);

impl LevelSeats {
    const WIDTH: u32 = 16;
    const LINGER: u32 = 20;
    /// The most moments that seats linger.
    pub const LONGEST: u32 = u32::MAX >> Self::LINGER;

    /// So many seats of the level with this number, 15 at most.
    pub fn new(level: u32, width: u32) -> Self {
        let width = width & Place::WIDTH_MASK;
        Self(level & ((1 << Self::WIDTH) - 1) | width << Self::WIDTH)
    }

    /// The same, lingering for so many moments.
    #[must_use]
    pub fn lingering(self, moments: u32) -> Self {
        let seats = self.0 & ((1 << Self::LINGER) - 1);
        Self(seats | moments.min(Self::LONGEST) << Self::LINGER)
    }

    /// From the number that [`Self::to_u32`] gives.
    pub fn from_u32(number: u32) -> Self {
        Self(number)
    }

    /// As a map has it.
    pub fn to_u32(self) -> u32 {
        self.0
    }

    /// Number of the level.
    #[inline(always)]
    pub fn level(self) -> u32 {
        self.0 & ((1 << Self::WIDTH) - 1)
    }

    /// How many seats each connection takes.
    pub fn width(self) -> u32 {
        self.place().width()
    }

    /// The place of a connection that takes them.
    #[inline(always)]
    pub fn place(self) -> Place {
        let width = self.0 >> Self::WIDTH & Place::WIDTH_MASK;
        Place::of_level(self.level(), width)
    }

    /// For how many moments they linger after the end of a connection.
    #[inline(always)]
    pub fn linger(self) -> u32 {
        self.0 >> Self::LINGER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a record says of it, beside the largest id of a service and all other flags of its direction.
    fn recorded(place: Place) -> Place {
        let service = (1 << SERVICE_BITS) - 1;
        let word = place.beside(service);
        assert_eq!(word & service, service);
        let others = flow_flag::NUMBERED | flow_flag::REPLY | flow_flag::SCALE | flow_flag::SCTP;
        assert_eq!(place.in_flags() & others, 0);
        Place::read(word, place.in_flags() | others)
    }

    #[test]
    fn a_place_lies_beside_the_service() {
        let place = Place::NODE.and(Place::of_service(2047));
        assert_eq!((place.service(), place.has_node()), (2047, true));
        assert_eq!(recorded(place), place);
        assert!(!Place::of_service(7).has_node() && Place::NONE.is_none());
        assert_eq!(place.limits().collect::<Vec<_>>(), [(NODE, 1), (2047, 1)]);
    }

    #[test]
    fn the_number_of_a_level_lies_beside_flags_as_well() {
        for number in FIRST_LEVEL..LEVEL_NUMBERS as u32 {
            for width in 1..=16 {
                let level = Place::of_level(number, width);
                let place = Place::of_service(5).and(level);
                assert!(!place.has_node() && place.has_shared(), "{number}");
                assert_eq!((place.level(), place.shared()), (number, LEVELS + number));
                assert_eq!((place.width(), recorded(place)), (width, place));
                assert_eq!(Place::from_u32(place.number()), place);
                assert_eq!(place.without_shared(), Place::of_service(5));
                assert_eq!(place.only_shared(), level);
                let limits: Vec<_> = place.limits().collect();
                assert_eq!(limits, [(LEVELS + number, width), (5, 1)]);
            }
        }
        assert_eq!((Place::NODE.level(), Place::of_service(3).level()), (0, 0));
        assert_eq!(Place::of_level(0, 7), Place::NONE);
        assert_eq!(Place::of_level(7, 0), Place::of_level(7, 1));
    }

    #[test]
    fn what_a_schema_takes_is_one_number() {
        let seats = LevelSeats::new(255, 10).lingering(640);
        assert_eq!(
            (seats.level(), seats.width(), seats.linger()),
            (255, 10, 640)
        );
        assert_eq!(LevelSeats::from_u32(seats.to_u32()), seats);
        assert_eq!(seats.place(), Place::of_level(255, 10));
        assert_eq!(seats.lingering(1 << 20).linger(), LevelSeats::LONGEST);
        // As earlier versions write it.
        let before = LevelSeats::from_u32(7);
        assert_eq!((before.level(), before.width(), before.linger()), (7, 1, 0));
    }

    #[test]
    fn what_others_have_left_where_the_width_is_means_nothing_without_a_level() {
        let left = flow_flag::WIDTH
            .iter()
            .fold(0, |flags, bit| flags | 1 << bit);
        let flags = flow_flag::NUMBERED | flow_flag::REPLY | left;
        for place in [Place::NONE, Place::NODE, Place::of_service(9)] {
            assert_eq!(
                Place::read(place.beside(3), flags | place.in_flags()),
                place
            );
        }
    }
}
