//! Fixed-point arithmetic of work.

use lb_admission::seat_seconds::SeatSeconds;
use serde::Deserialize;

use crate::vectors;

#[derive(Deserialize)]
struct Text {
    units: u64,
    str: String,
}

#[derive(Deserialize)]
struct Product {
    seats: f64,
    ns: i64,
    units: u64,
}

#[derive(Deserialize)]
struct Quotient {
    units: u64,
    seats: f64,
    ns: u64,
}

#[test]
fn work_is_computed_and_written_as_by_upstream() {
    let texts: Vec<Text> = vectors::at("/g_extras/seatSeconds/strings");
    let products: Vec<Product> = vectors::at("/g_extras/seatSeconds/seatsTimesDuration");
    let quotients: Vec<Quotient> = vectors::at("/g_extras/seatSeconds/durationPerSeat");
    assert!(!texts.is_empty() && !products.is_empty() && !quotients.is_empty());
    for case in texts {
        assert_eq!(SeatSeconds::from_units(case.units).to_string(), case.str);
    }
    for case in products {
        let work = SeatSeconds::new(case.seats, case.ns);
        assert_eq!(
            work.units(),
            case.units,
            "{} seats, {} ns",
            case.seats,
            case.ns
        );
    }
    for case in quotients {
        let work = SeatSeconds::from_units(case.units);
        assert_eq!(work.per_seat(case.seats), case.ns);
    }
}
