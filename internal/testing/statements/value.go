package statements

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// The OIDs of types whose values are written in another way than PostgreSQL does.
const (
	oidText     = 25
	oidSnapshot = 5038
	oidXID8     = 5069
	oidInterval = 1186
)

var (
	shortTime = regexp.MustCompile(`\bnow([+-])(\d+)(h|m)`)
	shortV7   = regexp.MustCompile(`#now([+-]\d+)m`)
	shortUUID = regexp.MustCompile(`#(\d+)`)
	shortLane = regexp.MustCompile(`\bturns\((\w+)\)`)
	shortText = regexp.MustCompile(`\brep\((\w),(\d+)\)`)
	shortWord = regexp.MustCompile(`\b(cur|open|cluster)\b`)

	longTime     = regexp.MustCompile(`"?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d(?:\.\d+)?)\+00(?::00)?"?`)
	textSnapshot = regexp.MustCompile(`^\d+:\d+:[\d,]*$`)
	longUUID     = regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`)
	longXID      = regexp.MustCompile(`\d+`)
	longSpan     = regexp.MustCompile(`(\d+):(\d\d):(\d\d(?:\.\d+)?)`)
	large        = regexp.MustCompile(`\b\d{8,}\b`)
	spans        = regexp.MustCompile(`(_us|_seconds|^age|^lag)$`)
	exact        = regexp.MustCompile(`period|max_lag`) // of spans, those that are no time since something
)

// firstXID is below every xid of a cluster in use, and above those of cases.
const firstXID = 500

// now is what the values of a case are relative to.
type now struct {
	time   time.Time
	xid    string
	open   string
	system string
}

// expand returns a value of a case as PostgreSQL reads it.
func (n now) expand(value string) string {
	value = shortV7.ReplaceAllStringFunc(value, func(s string) string {
		minutes, _ := strconv.Atoi(shortV7.FindStringSubmatch(s)[1]) // digits
		ms := fmt.Sprintf("%012x", n.time.Add(time.Duration(minutes)*time.Minute).UnixMilli())
		return ms[:8] + "-" + ms[8:] + "-7000-8000-000000000000"
	})
	value = shortTime.ReplaceAllStringFunc(value, func(s string) string {
		m := shortTime.FindStringSubmatch(s)
		count, _ := strconv.Atoi(m[1] + m[2]) // digits
		unit := time.Hour
		if m[3] == "m" {
			unit = time.Minute
		}
		return n.time.Add(time.Duration(count) * unit).UTC().Format("2006-01-02T15:04:05.000000Z")
	})
	value = shortUUID.ReplaceAllStringFunc(value, func(s string) string {
		return "00000000-0000-0000-0000-" + strings.Repeat("0", 12-len(s[1:])) + s[1:]
	})
	value = shortLane.ReplaceAllStringFunc(value, func(s string) string {
		return strconv.Itoa(turnLane(shortLane.FindStringSubmatch(s)[1]))
	})
	value = shortText.ReplaceAllStringFunc(value, func(s string) string {
		m := shortText.FindStringSubmatch(s)
		count, _ := strconv.Atoi(m[2]) // digits
		return strings.Repeat(m[1], count)
	})
	return shortWord.ReplaceAllStringFunc(value, func(s string) string {
		return map[string]string{"cur": n.xid, "open": n.open, "cluster": n.system}[s]
	})
}

// turnLane is the lane of the turns of a topic.
func turnLane(topic string) int {
	sum := sha256.Sum256([]byte(topic))
	return int(binary.BigEndian.Uint32(sum[:4])&(1<<30-1) | 1<<30)
}

// knownLanes has the lanes of the turns of the topics of cases.
var knownLanes = func() map[string]string {
	known := map[string]string{}
	for _, topic := range []string{"x", "y"} {
		known[strconv.Itoa(turnLane(topic))] = "turns(" + topic + ")"
	}
	return known
}()

// shortenRuns writes many times the same character as rep(x,100).
func shortenRuns(value string) string {
	var b strings.Builder
	for i := 0; i < len(value); {
		n := i + 1
		for n < len(value) && value[n] == value[i] {
			n++
		}
		if n-i < 50 {
			b.WriteString(value[i:n])
		} else {
			_, _ = fmt.Fprintf(&b, "rep(%c,%d)", value[i], n-i)
		}
		i = n
	}
	return b.String()
}

// replaceIf replaces what pattern matches. A value without part has nothing of it.
func replaceIf(value, part string, pattern *regexp.Regexp, with func(string) string) string {
	if !strings.Contains(value, part) {
		return value
	}
	return pattern.ReplaceAllStringFunc(value, with)
}

// shorten is the reverse of expand. Times are rounded to minutes, and a UUID that the statement has made is #new.
func (n now) shorten(value, column string, oid uint32) string {
	if spans.MatchString(column) && !exact.MatchString(column) {
		if v, err := strconv.ParseFloat(value, 64); err == nil && math.Abs(v) >= 10 {
			return fmt.Sprintf("%.0fm", math.Round(v/60e6))
		}
	}
	if oid == oidText && textSnapshot.MatchString(value) {
		oid = oidSnapshot
	}
	switch oid {
	case oidSnapshot, oidXID8:
		if first, err := strconv.Atoi(longXID.FindString(value)); oid == oidSnapshot && err == nil && first >= firstXID {
			return "current"
		}
		return longXID.ReplaceAllStringFunc(value, func(s string) string {
			v, err := strconv.ParseUint(s, 10, 64)
			switch {
			case s == n.open:
				return "open"
			case err == nil && v >= firstXID:
				return "cur"
			}
			return s
		})
	case oidInterval:
		return longSpan.ReplaceAllStringFunc(value, func(s string) string {
			m := longSpan.FindStringSubmatch(s)
			h, _ := strconv.ParseFloat(m[1], 64)
			min, _ := strconv.ParseFloat(m[2], 64)
			sec, _ := strconv.ParseFloat(m[3], 64)
			return fmt.Sprintf("%.0fm", math.Round(h*60+min+sec/60))
		})
	}
	if len(value) < 8 {
		return value
	}
	if len(value) > 100 {
		value = shortenRuns(value)
	}
	value = replaceIf(value, ":", longTime, func(s string) string {
		m := longTime.FindStringSubmatch(s)
		t, err := time.Parse("2006-01-02 15:04:05.999999", m[1]+" "+m[2])
		if err != nil {
			return s
		}
		minutes := int(math.Round(t.Sub(n.time).Minutes()))
		switch {
		case minutes == 0:
			return "now"
		case minutes%60 == 0:
			return fmt.Sprintf("now%+dh", minutes/60)
		}
		return fmt.Sprintf("now%+dm", minutes)
	})
	value = replaceIf(value, "-", longUUID, func(s string) string {
		if prefix, ok := strings.CutSuffix(s, "-7000-8000-000000000000"); ok {
			ms, _ := strconv.ParseInt(strings.ReplaceAll(prefix, "-", ""), 16, 64) // longUUID says so
			return fmt.Sprintf("#now%+dm", int(math.Round(time.UnixMilli(ms).Sub(n.time).Minutes())))
		}
		digits, ours := strings.CutPrefix(s, "00000000-0000-0000-0000-")
		number, err := strconv.Atoi(digits)
		switch {
		case s == "ffffffff-ffff-ffff-ffff-ffffffffffff":
			return s
		case !ours || err != nil:
			return "#new"
		}
		return "#" + strconv.Itoa(number)
	})
	return large.ReplaceAllStringFunc(value, func(s string) string {
		switch {
		case knownLanes[s] != "":
			return knownLanes[s]
		case s == n.system:
			return "cluster"
		}
		return s
	})
}
