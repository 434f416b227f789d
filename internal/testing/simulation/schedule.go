package simulation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Schedule says what happens in a run. Its seed alone is enough; what was shrunk also says which events and faults are
// left.
type Schedule struct {
	Machine string
	Seed    uint64
	// Salt decides how long things take. A search for a smaller schedule tries several.
	Salt uint64
	// Without names the guard that is left out of the model or of the shell, for a negative control; "" leaves out none.
	Without string
	// Processes is how many start at most; 0 leaves it to the seed.
	Processes int
	// Busy is how long things happen; 0 leaves it to the machine.
	Busy time.Duration
	// Rough lets every kind of fault happen, in place of about half of them, and each three times as often.
	Rough bool
	// Fixed says that only these events, by their numbers, and these faults happen.
	Fixed  bool
	Events []int
	Faults []Fault
}

// Has reports whether the event of number n is enqueued.
func (s *Schedule) Has(n int) bool {
	if !s.Fixed {
		return true
	}
	_, has := slices.BinarySearch(s.Events, n)
	return has
}

// String returns s as text, which Parse reads.
func (s *Schedule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "machine %s\nseed %d\n", s.Machine, s.Seed)
	if s.Salt > 0 {
		fmt.Fprintf(&b, "salt %d\n", s.Salt)
	}
	if s.Without != "" {
		fmt.Fprintf(&b, "without %s\n", s.Without)
	}
	if s.Processes > 0 {
		fmt.Fprintf(&b, "processes %d\n", s.Processes)
	}
	if s.Busy > 0 {
		fmt.Fprintf(&b, "busy %s\n", s.Busy)
	}
	if s.Rough {
		b.WriteString("rough\n")
	}
	if s.Fixed {
		b.WriteString("fixed\n")
	}
	for _, n := range s.Events {
		fmt.Fprintf(&b, "event %d\n", n)
	}
	for _, f := range s.Faults {
		fmt.Fprintf(&b, "fault %s %d %x\n", f.Kind, f.N, f.Pick)
	}
	return b.String()
}

// Parse reads a schedule. It skips lines that begin with "#".
func Parse(text string) (*Schedule, error) {
	s := &Schedule{}
	for i, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if err := s.parse(words); err != nil {
			return nil, fmt.Errorf("parse schedule: line %d: %w", i+1, err)
		}
	}
	slices.Sort(s.Events)
	return s, nil
}

func (s *Schedule) parse(words []string) (err error) {
	n := 2
	switch words[0] {
	case "rough", "fixed":
		n = 1
	case "fault":
		n = 4
	}
	if len(words) != n {
		return fmt.Errorf("%d words after %q", len(words)-1, words[0])
	}
	switch words[0] {
	case "machine":
		s.Machine = words[1]
	case "seed":
		s.Seed, err = strconv.ParseUint(words[1], 10, 64)
	case "salt":
		s.Salt, err = strconv.ParseUint(words[1], 10, 64)
	case "without":
		s.Without = words[1]
	case "processes":
		s.Processes, err = strconv.Atoi(words[1])
	case "busy":
		s.Busy, err = time.ParseDuration(words[1])
	case "rough":
		s.Rough = true
	case "fixed":
		s.Fixed = true
	case "event":
		var event int
		event, err = strconv.Atoi(words[1])
		s.Events = append(s.Events, event)
	case "fault":
		var f Fault
		if f.Kind, err = KindOf(words[1]); err != nil {
			return err
		}
		if f.N, err = strconv.Atoi(words[2]); err != nil {
			return err
		}
		f.Pick, err = strconv.ParseUint(words[3], 16, 64)
		s.Faults = append(s.Faults, f)
	default:
		err = fmt.Errorf("what is %q?", words[0])
	}
	return err
}
