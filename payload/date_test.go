package payload_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/outboxgen/outboxgen/payload"
)

func TestParseDate(t *testing.T) {
	t.Parallel()
	d, err := payload.ParseDate("2024-02-29")
	require.NoError(t, err)
	require.Equal(t, payload.Date{Year: 2024, Month: time.February, Day: 29}, d)
	for _, bad := range []string{
		"", "2023-02-29", "2024-2-29", "24-02-29", "2024-02-29T00:00:00Z", " 2024-02-29", "2024-02-29 ", "+024-02-29",
		"0000-01-01", "2024-13-01", "2024-00-10", "2024-01-00", "10000-01-01", "２０２４-01-01", "null",
	} {
		_, err := payload.ParseDate(bad)
		require.Error(t, err, bad)
		if bad != "" {
			require.NotContains(t, err.Error(), bad, "a date may be sensitive")
		}
	}
}

// TestDateAgreesWithTime compares each property of a Date with that of a time.Time.
func TestDateAgreesWithTime(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		d := payload.Date{
			Year:  rapid.IntRange(-1, 10001).Draw(rt, "year"),
			Month: time.Month(rapid.IntRange(-1, 14).Draw(rt, "month")),
			Day:   rapid.IntRange(-1, 33).Draw(rt, "day"),
		}
		exists := d.Year >= 1 && d.Year <= 9999 && payload.DateOf(d.In(time.UTC)) == d
		require.Equal(rt, exists, d.Validate() == nil, d)
		text, err := d.MarshalText()
		if !exists {
			require.ErrorIs(rt, err, payload.ErrInvalid)
			return
		}
		require.NoError(rt, err)
		require.Equal(rt, d.In(time.UTC).Format(time.DateOnly), string(text))
		require.Equal(rt, string(text), d.String())
		back, err := payload.ParseDate(string(text))
		require.NoError(rt, err)
		require.Equal(rt, d, back)
	})
}

// TestDatesThatExist: the first and the last day of the years and of months exist, and the days around them do not. String
// writes them nevertheless.
func TestDatesThatExist(t *testing.T) {
	t.Parallel()
	for text, day := range map[string]payload.Date{
		"0001-01-01": {Year: 1, Month: 1, Day: 1}, "9999-12-31": {Year: 9999, Month: 12, Day: 31},
		"2026-12-01": {Year: 2026, Month: 12, Day: 1}, "2024-02-29": {Year: 2024, Month: 2, Day: 29},
		"2026-04-30": {Year: 2026, Month: 4, Day: 30},
	} {
		require.NoError(t, day.Validate(), text)
		require.Equal(t, text, day.String())
	}
	for text, day := range map[string]payload.Date{
		"0000-12-31": {Year: 0, Month: 12, Day: 31}, "10000-01-01": {Year: 10000, Month: 1, Day: 1},
		"2026-00-01": {Year: 2026, Day: 1}, "2026-13-01": {Year: 2026, Month: 13, Day: 1},
		"2026-01-00": {Year: 2026, Month: 1}, "2026-01-32": {Year: 2026, Month: 1, Day: 32},
		"2026-02-29": {Year: 2026, Month: 2, Day: 29}, "2026-04-31": {Year: 2026, Month: 4, Day: 31},
	} {
		require.ErrorIs(t, day.Validate(), payload.ErrInvalid, text)
		require.Equal(t, text, day.String())
	}
}

func TestDateJSON(t *testing.T) {
	t.Parallel()
	type body struct {
		Day   payload.Date            `json:"day"`
		Maybe *payload.Date           `json:"maybe,omitempty"`
		Days  map[string]payload.Date `json:"days"`
	}
	want := body{Day: payload.Date{Year: 2026, Month: 1, Day: 2}, Days: map[string]payload.Date{"a": {Year: 1, Month: 1, Day: 1}}}
	data, err := json.Marshal(want)
	require.NoError(t, err)
	require.JSONEq(t, `{"day":"2026-01-02","days":{"a":"0001-01-01"}}`, string(data))
	var got body
	require.NoError(t, json.Unmarshal(data, &got))
	require.Equal(t, want, got)
	_, err = json.Marshal(body{})
	require.ErrorIs(t, err, payload.ErrInvalid)
	require.Error(t, json.Unmarshal([]byte(`{"day":20260102}`), &got))
}

func TestDateOfUsesLocation(t *testing.T) {
	t.Parallel()
	utc := time.Date(2026, 12, 31, 23, 30, 0, 0, time.UTC)
	require.Equal(t, "2026-12-31", payload.DateOf(utc).String())
	require.Equal(t, "2027-01-01", payload.DateOf(utc.In(time.FixedZone("", 3600))).String())
}

func ExampleDate() {
	d, err := payload.ParseDate("2026-11-21")
	fmt.Println(d.Month, d.IsZero(), err)
	_, err = payload.ParseDate("2026-11-31")
	fmt.Println(err)
	// Output:
	// November false <nil>
	// parse date: not of the form 2006-01-02, or the day does not exist
}
