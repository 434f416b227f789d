package events

import (
	"fmt"
	"time"

	"github.com/google/uuid"
)

func upcastFinalizedV1(old FinalizedV1) (FinalizedV2, error) {
	made := FinalizedV2{ID: old.ID, Seconds: int64(old.Seconds), Usage: upcastUsage(old.Usage), State: old.State, Note: old.Note}
	if id, err := uuid.Parse(string(old.UserID)); err == nil {
		user := UserID(id)
		made.UserID = &user
	}
	var err error
	if made.Outcome, err = upcastOutcome(old.Outcome); err != nil {
		return made, err
	}
	made.Outcomes = make(map[string]Outcome)
	for name, outcome := range old.Outcomes {
		if made.Outcomes[name], err = upcastOutcome(outcome); err != nil {
			return made, err
		}
	}
	return made, nil
}

func upcastUsage(old FinalizedV1Usage) Usage {
	return Usage{Tokens: int64(old.Tokens), Key: old.Key}
}

func upcastOutcome(old FinalizedV1Outcome) (Outcome, error) {
	switch old {
	case FinalizedV1OutcomeDone:
		return OutcomeCompleted, nil
	case FinalizedV1OutcomeFailed:
		return OutcomeFailed, nil
	}
	return "", fmt.Errorf("unknown outcome %q", old)
}

func upcastFinalizedV2(old FinalizedV2) (Finalized, error) {
	return Finalized{
		ID: old.ID, Took: time.Duration(old.Seconds) * time.Second, Usage: old.Usage, Outcome: old.Outcome, State: old.State,
		UserID: old.UserID, Outcomes: old.Outcomes, Note: old.Note,
	}, nil
}

func upcastPostedV1(old PostedV1) (Posted, error) {
	made := Posted{ID: old.ID}
	for _, usage := range old.Usage {
		made.Usage = append(made.Usage, Usage{Tokens: int64(usage.Tokens), Key: usage.Key})
	}
	return made, nil
}
