// Package deliveryhistory records what producers and handlers did in tests that kill, stop and restart processes. It
// compares that record with the tables: the invariants I1 to I11 of docs/run/delivery.md.
//
// Each record is one line of a file, written by one system call and then synced, so several processes may share the
// file. A record starts with a newline and ends with a dot, so a record that a kill cuts off does not damage the
// others.
package deliveryhistory

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/google/uuid"
)

// Outcome is how a producer's transaction ended.
type Outcome string

// The outcomes. A transaction is Unknown from before its commit is sent until the answer arrives.
const (
	Committed Outcome = "committed"
	Aborted   Outcome = "aborted"
	Unknown   Outcome = "unknown"
)

// Log appends records to a file. Any number of goroutines may use it concurrently.
type Log struct {
	mu   sync.Mutex
	file *os.File
}

// Open opens or creates the file at path for more records.
func Open(path string) (*Log, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open history: %w", err)
	}
	return &Log{file: file}, nil
}

// Close closes the file.
func (l *Log) Close() error { return l.file.Close() }

// Tx records how the transaction that enqueued events ended. A later record of tx replaces an earlier one. Write
// Unknown before the commit is sent, so that the record is true even if the producer is killed.
func (l *Log) Tx(tx uuid.UUID, outcome Outcome, events ...uuid.UUID) error {
	var b strings.Builder
	fmt.Fprintf(&b, "tx %s %s", tx, outcome)
	for _, id := range events {
		b.WriteByte(' ')
		b.WriteString(id.String())
	}
	return l.append(b.String())
}

// Delivery records that a handler got event. Call it before the handler does anything.
func (l *Log) Delivery(event uuid.UUID, attempt int, worker string) error {
	return l.append(fmt.Sprintf("delivery %s %d %s", event, attempt, worker))
}

func (l *Log) append(line string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.file.WriteString("\n" + line + " ."); err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	if err := l.file.Sync(); err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	return nil
}

// History is the content of a file of records.
type History struct {
	// Outcomes has the outcome of each event according to its producer.
	Outcomes map[uuid.UUID]Outcome
	// Deliveries counts how often a handler got each event.
	Deliveries map[uuid.UUID]int
}

// Read reads the file at path. It skips a line that a killed process left incomplete.
func Read(path string) (*History, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	defer func() { _ = file.Close() }()
	h := &History{Outcomes: make(map[uuid.UUID]Outcome), Deliveries: make(map[uuid.UUID]int)}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for n := 0; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || fields[len(fields)-1] != "." {
			continue
		}
		if err := h.add(fields[:len(fields)-1]); err != nil {
			return nil, fmt.Errorf("read history: line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	return h, nil
}

func (h *History) add(fields []string) error {
	switch {
	case fields[0] == "tx" && len(fields) >= 3:
		for _, text := range fields[3:] {
			id, err := uuid.Parse(text)
			if err != nil {
				return err
			}
			h.Outcomes[id] = Outcome(fields[2])
		}
		return nil
	case fields[0] == "delivery" && len(fields) == 4:
		id, err := uuid.Parse(fields[1])
		if err != nil {
			return err
		}
		h.Deliveries[id]++
		return nil
	}
	return fmt.Errorf("unknown record %q", fields[0])
}
