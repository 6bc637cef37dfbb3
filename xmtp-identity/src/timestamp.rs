//! RFC 3339 in whole seconds, the only time format in a signature text.

const SECONDS_PER_DAY: i64 = 86_400;

/// Formats nanoseconds since 1970 as RFC 3339 in whole seconds and UTC.
///
/// The unsigned value is read as a signed one and divided rounding down, so every value has a
/// text: the years 1677 to 2262.
pub(crate) fn rfc3339_seconds(timestamp_ns: u64) -> String {
    let seconds = timestamp_ns.cast_signed().div_euclid(1_000_000_000);
    let (year, month, day) = civil_date(seconds.div_euclid(SECONDS_PER_DAY));
    let second_of_day = seconds.rem_euclid(SECONDS_PER_DAY);
    let (hour, minute) = (second_of_day / 3600, second_of_day / 60 % 60);
    let second = second_of_day % 60;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Returns year, month and day of a day counted from 1970-01-01.
///
/// Counts in years that begin in March, so that the leap day is the last day of a year.
fn civil_date(days_since_1970: i64) -> (i64, i64, i64) {
    const DAYS_PER_ERA: i64 = 146_097; // 400 years
    let days = days_since_1970 + 719_468; // since 0000-03-01
    let era = days.div_euclid(DAYS_PER_ERA);
    let day_of_era = days.rem_euclid(DAYS_PER_ERA);
    let leap_days = day_of_era / 1460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_instants() {
        const S: u64 = 1_000_000_000;
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (S - 1, "1970-01-01T00:00:00Z"),
            (951_782_400 * S, "2000-02-29T00:00:00Z"),
            (951_868_799 * S, "2000-02-29T23:59:59Z"),
            (1_709_164_800 * S, "2024-02-29T00:00:00Z"),
            (4_107_542_400 * S, "2100-03-01T00:00:00Z"),
            (4_107_456_000 * S, "2100-02-28T00:00:00Z"),
            (1_796_033_291 * S + 7, "2026-11-30T10:08:11Z"),
            (i64::MAX as u64, "2262-04-11T23:47:16Z"),
            (i64::MIN as u64, "1677-09-21T00:12:43Z"),
            (u64::MAX, "1969-12-31T23:59:59Z"),
        ];
        for (timestamp, expected) in cases {
            assert_eq!(rfc3339_seconds(timestamp), expected, "at {timestamp}");
        }
    }

    #[test]
    fn dates_follow_the_calendar() {
        let (mut year, mut month, mut day) = (1677, 1, 1);
        let first = -107_015; // 1677-01-01
        for number in first..=(first + 214_000) {
            assert_eq!(civil_date(number), (year, month, day));
            day += 1;
            if day > days_in_month(year, month) {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
    }

    fn days_in_month(year: i64, month: i64) -> i64 {
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        match month {
            2 => 28 + i64::from(leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        }
    }
}
