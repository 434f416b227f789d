package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/examples/minichat/events"
)

const journalSuffix = ".jsonl"

// The outcomes of a finalisation, as its producer saw them.
const (
	committed  = "committed"
	rolledBack = "rolled back" // the event, if there was one, must not exist
	duplicate  = "duplicate"   // the event is the existing one
	refused    = "refused"     // the turn never ran
)

// attempt is a producer's record at the end of a transaction.
type attempt struct {
	Turn  events.TurnID `json:"turn"`
	Event uuid.NullUUID `json:"event"` // invalid when the transaction got no event
	Fate  string        `json:"fate"`
}

// The steps of a delivery.
const (
	started = "started"
	handled = "handled"
	failed  = "failed"
)

// delivery is a handler's record when it begins, and when it is about to return.
type delivery struct {
	Turn    events.TurnID `json:"turn"`
	Event   uuid.UUID     `json:"event"`
	Attempt int           `json:"attempt"`
	Step    string        `json:"step"`
}

// shown is the record of a turn that the listener typing has shown.
type shown struct {
	Turn  events.TurnID `json:"turn"`
	Event uuid.UUID     `json:"event"`
}

// journal is a file of records, one JSON object per line. The records survive the death of the process that wrote them.
// Any goroutine may call its methods.
type journal struct {
	file *os.File
}

func openJournal(path string) (*journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	return &journal{file: f}, nil
}

// add appends a record with one write, so that records do not mix.
func (j *journal) add(record any) error {
	line, err := json.Marshal(record)
	if err == nil {
		_, err = j.file.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	return nil
}

func (j *journal) close() error { return j.file.Close() }

// readJournals returns the records of all journals in dir whose names start with prefix.
func readJournals[R any](dir, prefix string) ([]R, error) {
	paths, err := filepath.Glob(filepath.Join(dir, prefix+"*"+journalSuffix))
	if err != nil {
		return nil, fmt.Errorf("read journals: %w", err)
	}
	var records []R
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read journal: %w", err)
		}
		for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
			var r R
			err := decoder.Decode(&r)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("read journal %s: %w", filepath.Base(path), err)
			}
			records = append(records, r)
		}
	}
	return records, nil
}
