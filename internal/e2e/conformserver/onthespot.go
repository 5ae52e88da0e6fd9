package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// What a server of the 2025 versions does with the same questions: it asks them by
// requests, while the call waits, and has no names for them.

// onTheSpot is the interview with a client that is asked by requests. An answer
// that is none fails the call.
func (i interview) onTheSpot(ctx context.Context, req *mcp.CallToolRequest, _ map[string]any) (*mcp.CallToolResult, any, error) {
	all := mcp.InputResponseMap{}
	for _, round := range i.rounds {
		answers, err := ask(ctx, req.Session, round)
		if err != nil {
			return nil, nil, err
		}
		if !answered(round, answers) {
			return nil, nil, fmt.Errorf("%s was not told what it asked for", i.name)
		}
		for key, answer := range answers {
			all[key] = answer
		}
	}
	if err := wait(ctx, i.work); err != nil {
		return nil, nil, err
	}
	return i.result(all)
}

func asksWhatIsDeclaredOnTheSpot(ctx context.Context, req *mcp.CallToolRequest, _ map[string]any) (*mcp.CallToolResult, any, error) {
	if _, err := ask(ctx, req.Session, declaredQuestions(req.ClientCapabilities())); err != nil {
		return nil, nil, err
	}
	return &mcp.CallToolResult{Content: []mcp.Content{text("nothing more to ask")}}, nil, nil
}

// ask asks all questions at the same time.
func ask(ctx context.Context, session *mcp.ServerSession, questions mcp.InputRequestMap) (mcp.InputResponseMap, error) {
	var (
		asking  sync.WaitGroup
		mu      sync.Mutex
		answers = mcp.InputResponseMap{}
		failed  error
	)
	for key, question := range questions {
		asking.Go(func() {
			answer, err := askOne(ctx, session, question)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
				return
			}
			answers[key] = answer
		})
	}
	asking.Wait()
	return answers, failed
}

func askOne(ctx context.Context, session *mcp.ServerSession, question mcp.InputRequest) (mcp.InputResponse, error) {
	switch q := question.(type) {
	case *mcp.ElicitParams:
		return session.Elicit(ctx, q)
	case *mcp.CreateMessageParams:
		return session.CreateMessage(ctx, q)
	case *mcp.ListRootsParams:
		return session.ListRoots(ctx, q)
	}
	return nil, fmt.Errorf("%T is not a question", question)
}
