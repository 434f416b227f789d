package payload

import (
	"fmt"
	"time"
)

// Date is a day of the calendar without a time zone, for payload fields of type date. In JSON it is the
// string "2006-01-02". The zero value is no date: it neither validates nor encodes.
type Date struct {
	Year  int // 1 to 9999
	Month time.Month
	Day   int
}

// DateOf returns the day of t in the location of t.
func DateOf(t time.Time) Date {
	y, m, d := t.Date()
	return Date{Year: y, Month: m, Day: d}
}

// ParseDate reads "2006-01-02", with all digits and a day that exists. The error does not quote s,
// which may be sensitive.
func ParseDate(s string) (Date, error) {
	var d Date
	if err := d.UnmarshalText([]byte(s)); err != nil {
		return Date{}, err
	}
	return d, nil
}

// IsZero reports whether d is the zero value.
func (d Date) IsZero() bool { return d == Date{} }

// Validate returns nil for a day that exists in the years 1 to 9999, else a *ValidationError.
func (d Date) Validate() error {
	if d.valid() {
		return nil
	}
	return &ValidationError{Topic: "date", Fields: []FieldError{{Rule: "date", Message: "is not a day of the years 1 to 9999"}}}
}

func (d Date) valid() bool {
	return 1 <= d.Year && d.Year <= 9999 && d.Month >= time.January && d.Month <= time.December &&
		1 <= d.Day && d.Day <= daysIn(d.Year, d.Month)
}

func daysIn(year int, month time.Month) int {
	return time.Date(year, month+1, 0, 0, 0, 0, 0, time.UTC).Day()
}

// String returns d as 2006-01-02, whether or not it exists.
func (d Date) String() string { return string(d.appendTo(make([]byte, 0, len(time.DateOnly)))) }

func (d Date) appendTo(buf []byte) []byte {
	if !d.valid() {
		return fmt.Appendf(buf, "%04d-%02d-%02d", d.Year, int(d.Month), d.Day)
	}
	y, m := d.Year, int(d.Month)
	return append(buf, digit(y/1000), digit(y/100), digit(y/10), digit(y), '-', digit(m/10), digit(m), '-', digit(d.Day/10), digit(d.Day))
}

func digit(n int) byte { return '0' + byte(n%10) }

// In returns the first instant of d in loc, as time.Date gives it.
func (d Date) In(loc *time.Location) time.Time {
	return time.Date(d.Year, d.Month, d.Day, 0, 0, 0, 0, loc)
}

// AppendText implements encoding.TextAppender. It fails for a date that does not exist.
func (d Date) AppendText(buf []byte) ([]byte, error) {
	if err := d.Validate(); err != nil {
		return buf, err
	}
	return d.appendTo(buf), nil
}

// MarshalText implements encoding.TextMarshaler, and so the JSON encoding. It fails for a date that does
// not exist.
func (d Date) MarshalText() ([]byte, error) { return d.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler, and so the JSON decoding. It is strict: ten
// characters, and a day that exists; d is unchanged by an error.
func (d *Date) UnmarshalText(text []byte) error {
	t, err := time.Parse(time.DateOnly, string(text))
	if err != nil {
		return fmt.Errorf("parse date: not of the form %s, or no such day", time.DateOnly)
	}
	parsed := DateOf(t)
	if err := parsed.Validate(); err != nil {
		return fmt.Errorf("parse date: %w", err)
	}
	*d = parsed
	return nil
}
