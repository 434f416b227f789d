package payload

import (
	"fmt"
	"time"
)

// Date is a calendar day without a time zone. It is the type of payload fields of type date. In JSON it is the string
// "2006-01-02". The zero value is not a valid date: Validate and encoding return an error.
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

// ParseDate reads a date of the form "2006-01-02", with all digits. A day that does not exist is an error. The error
// does not quote s, which may be sensitive.
func ParseDate(s string) (Date, error) {
	var d Date
	if err := d.UnmarshalText([]byte(s)); err != nil {
		return Date{}, err
	}
	return d, nil
}

// IsZero reports whether d is the zero value.
func (d Date) IsZero() bool { return d == Date{} }

// Validate returns nil for a day that exists in the years 1 to 9999, and a *ValidationError otherwise.
func (d Date) Validate() error {
	if d.valid() {
		return nil
	}
	return &ValidationError{
		Topic: "date", Fields: []FieldError{{Rule: "date", Message: "is not a day in the years 1 to 9999"}},
	}
}

func (d Date) valid() bool {
	return 1 <= d.Year && d.Year <= 9999 && d.Month >= time.January && d.Month <= time.December &&
		1 <= d.Day && d.Day <= daysIn(d.Year, d.Month)
}

func daysIn(year int, month time.Month) int {
	return time.Date(year, month+1, 0, 0, 0, 0, 0, time.UTC).Day()
}

// String returns d as 2006-01-02, even if the day does not exist.
func (d Date) String() string { return string(d.appendTo(make([]byte, 0, len(time.DateOnly)))) }

func (d Date) appendTo(buf []byte) []byte {
	if !d.valid() {
		return fmt.Appendf(buf, "%04d-%02d-%02d", d.Year, int(d.Month), d.Day)
	}
	y, m := d.Year, int(d.Month)
	return append(buf, digit(y/1000), digit(y/100), digit(y/10), digit(y), '-', digit(m/10), digit(m), '-',
		digit(d.Day/10), digit(d.Day))
}

func digit(n int) byte { return '0' + byte(n%10) }

// In returns the first instant of d in loc, as time.Date gives it.
func (d Date) In(loc *time.Location) time.Time {
	return time.Date(d.Year, d.Month, d.Day, 0, 0, 0, 0, loc)
}

// AppendText implements encoding.TextAppender. A day that does not exist is an error.
func (d Date) AppendText(buf []byte) ([]byte, error) {
	if err := d.Validate(); err != nil {
		return buf, err
	}
	return d.appendTo(buf), nil
}

// MarshalText implements encoding.TextMarshaler, which JSON uses, too. A day that does not exist is an error.
func (d Date) MarshalText() ([]byte, error) { return d.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler, which JSON uses, too. It accepts exactly ten characters and only
// days that exist. An error leaves d unchanged.
func (d *Date) UnmarshalText(text []byte) error {
	t, err := time.Parse(time.DateOnly, string(text))
	if err != nil {
		return fmt.Errorf("parse date: not of the form %s, or the day does not exist", time.DateOnly)
	}
	parsed := DateOf(t)
	if err := parsed.Validate(); err != nil {
		return fmt.Errorf("parse date: %w", err)
	}
	*d = parsed
	return nil
}
