package job

import (
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

// rules are those of an export, as an operator writes them.
func rules(t testing.TB) *Rules {
	t.Helper()
	r := &Rules{
		ID: place(t, "$.jobId"), Value: place(t, "$.state"), Message: place(t, "$.detail"), Progress: place(t, "$.percent"), RetryAfter: place(t, "$.wait"),
		Status: Call{"export_status", template(t, `{"job_id":"{id}","region":"{arguments.where.region}","n":1}`)},
		Result: &Call{"export_result", template(t, `{"ids":["{id}"],"name":"job {id} of {arguments.user}"}`)},
		Lost:   regexp.MustCompile("no such job"),
	}
	r.Running, r.Done, r.Failed, r.Cancelled = values(t, `"queued"`, `1`), values(t, `"succeeded"`, `true`), values(t, `"failed"`), values(t, `"stopped"`)
	return r
}

func place(t testing.TB, text string) Place {
	t.Helper()
	p, err := ParsePlace(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func template(t testing.TB, object string) Template {
	t.Helper()
	made, err := ParseTemplate(json.RawMessage(object))
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func values(t testing.TB, texts ...string) (all []Value) {
	t.Helper()
	for _, text := range texts {
		v, err := ParseValue(json.RawMessage(text))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	return all
}

// says is a result with one text, or with structured content as well.
func says(text, structured string) json.RawMessage {
	result := map[string]any{"content": []any{map[string]any{"type": "text", "text": text}}}
	if structured != "" {
		result["structuredContent"] = json.RawMessage(structured)
	}
	b, _ := json.Marshal(result)
	return b
}

// The id of a job is where the rules say, in each of the ways in which servers answer, digit by digit.
func TestID(t *testing.T) {
	for _, c := range []struct{ name, place, text, structured, id, wrong string }{
		{"in structured content", "$.jobId", "x", `{"jobId":"a1"}`, `"a1"`, ""},
		{"in a text that is JSON", "$.jobId", `{"jobId":"a1"}`, "", `"a1"`, ""},
		{"in the text, as structured content lacks it", "$.jobId", `{"jobId":"a1"}`, `{}`, `"a1"`, ""},
		{"in a list", "$.jobs[0].id", "x", `{"jobs":[{"id":"a1"}]}`, `"a1"`, ""},
		{"a number above 2^53", "$.jobId", "x", `{"jobId":9007199254740993}`, `9007199254740993`, ""},
		{"in plain text", `/job (\S+) started/`, "job a-1 started", "", `"a-1"`, ""},
		{"nowhere", "$.jobId", "x", `{"id":1}`, "", "names no job"},
		{"empty", "$.jobId", "x", `{"jobId":""}`, "", "names no job"},
		{"null", "$.jobId", "x", `{"jobId":null}`, "", "names no job"},
		{"an object", "$.jobId", "x", `{"jobId":{}}`, "", "neither a text nor a number"},
		{"a boolean", "$.jobId", "x", `{"jobId":true}`, "", "neither a text nor a number"},
		{"of 1 MB", "$.jobId", "x", `{"jobId":"` + strings.Repeat("x", 1<<20) + `"}`, "", "more than"},
		{"twice", "$..jobId", "x", `{"jobId":1,"a":{"jobId":2}}`, "", "names no job"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rules(t)
			r.ID = place(t, c.place)
			m, err := r.Begin(says(c.text, c.structured), json.RawMessage(`{}`))
			if c.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), c.wrong) || len(err.Error()) > 200 {
					t.Errorf("the error is %v, want one with %q", err, c.wrong)
				}
				return
			}
			if err != nil || string(m.ID) != c.id {
				t.Errorf("the id is %s, %v, want %s", m.ID, err, c.id)
			}
		})
	}
}

// A value that is only a placeholder keeps its type; one in a text is spelt there; an argument that the first call left
// out is left out.
func TestParams(t *testing.T) {
	r := rules(t)
	m, err := r.Begin(says("x", `{"jobId":9007199254740993}`), json.RawMessage(`{"name":"start","arguments":{"where":{"region":"eu","more":1},"big":[1]}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(m.Arguments); got != `{"where":{"region":"eu"}}` {
		t.Errorf("kept of the arguments: %s", got)
	}
	if got, want := string(r.Status.Params(m)), `{"name":"export_status","arguments":{"job_id":9007199254740993,"region":"eu","n":1}}`; got != want {
		t.Errorf("params %s, want %s", got, want)
	}
	if got, want := string(r.Result.Params(m)), `{"name":"export_result","arguments":{"ids":[9007199254740993],"name":"job 9007199254740993 of "}}`; got != want {
		t.Errorf("params %s, want %s", got, want)
	}
	m.Arguments = nil
	if got, want := string(r.Status.Params(m)), `{"name":"export_status","arguments":{"job_id":9007199254740993,"n":1}}`; got != want {
		t.Errorf("params %s, want %s", got, want)
	}
	if got, want := string((&Call{Tool: "x"}).Params(m)), `{"name":"x","arguments":{}}`; got != want {
		t.Errorf("params %s, want %s", got, want)
	}
	quoted := Mark{ID: json.RawMessage(`"a\"{arguments.where}"`)}
	if got, want := string((&Call{"x", template(t, `{"a":"{id}","b":"<{id}>"}`)}).Params(quoted)), `{"name":"x","arguments":{"a":"a\"{arguments.where}","b":"<a\"{arguments.where}>"}}`; got != want {
		t.Errorf("what a server names is no template: %s, want %s", got, want)
	}
}

// Each answer of the status tool says how the job stands.
func TestRead(t *testing.T) {
	forty := 40.5
	for _, c := range []struct {
		name, text, structured string
		isError                bool
		want                   State
	}{
		{name: "running", structured: `{"state":"queued","detail":"row 7","percent":40.5,"wait":2}`, want: State{Phase: Running, Message: "row 7", Progress: &forty, RetryAfter: 2 * time.Second}},
		{name: "a text as number", structured: `{"state":1.0,"percent":"40.5%","detail":7}`, want: State{Phase: Running, Message: "7", Progress: &forty}},
		{name: "a number is no text", structured: `{"state":"1"}`, want: State{Phase: Running, Unknown: `"1"`}},
		{name: "done", text: `{"state":"succeeded"}`, want: State{Phase: Done}},
		{name: "done, as a boolean", structured: `{"state":true}`, want: State{Phase: Done}},
		{name: "failed", structured: `{"state":"failed","detail":{"a":1},"percent":[]}`, want: State{Phase: Failed}},
		{name: "failed, and an error", structured: `{"state":"failed"}`, isError: true, want: State{Phase: Failed}},
		{name: "cancelled", structured: `{"state":"stopped"}`, want: State{Phase: Cancelled}},
		{name: "unknown", structured: `{"state":"resting"}`, want: State{Phase: Running, Unknown: `"resting"`}},
		{name: "of another type", structured: `{"state":["queued"]}`, want: State{Phase: Running, Unknown: `["queued"]`}},
		{name: "missing", text: "hello", want: State{Phase: Running, Unknown: "nothing"}},
		{name: "lost", text: "there is no such job", want: State{Phase: Lost}},
		{name: "lost, and an error", text: "there is no such job", isError: true, want: State{Phase: Lost}},
		{name: "an error", text: "out of order", isError: true, want: State{Phase: Unread}},
		{name: "done, and an error", structured: `{"state":"succeeded"}`, isError: true, want: State{Phase: Unread}},
		{name: "a long wait", structured: `{"state":"queued","wait":1e300}`, want: State{Phase: Running, RetryAfter: time.Hour}},
		{name: "a wrong wait", structured: `{"state":"queued","wait":-5}`, want: State{Phase: Running}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := rules(t).Read(says(c.text, c.structured), c.isError); !reflect.DeepEqual(got, c.want) {
				t.Errorf("the state is %+v, want %+v", got, c.want)
			}
		})
	}
}

// Values are equal as JSON values: whatever their spelling, and digit by digit.
func TestValues(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{`"a"`, `"\u0061"`, true}, {`1`, `1.0`, true}, {`100`, `1e2`, true}, {`1`, `"1"`, false}, {`true`, `"true"`, false}, {`null`, `"null"`, false},
		{`9007199254740993`, `9007199254740992`, false}, {`{"a":1,"b":2}`, `{"b":2.0,"a":1}`, true}, {`[1]`, `[1,1]`, false},
	} {
		if same := values(t, c.a)[0] == values(t, c.b)[0]; same != c.same {
			t.Errorf("%s and %s are the same: %v", c.a, c.b, same)
		}
	}
}

// What is no place, and no template, is refused with the reason.
func TestMistakes(t *testing.T) {
	for text, wrong := range map[string]string{
		"jobId": "begins with $", "$.": "jsonpath", "/a/": "0 groups", "/(a)(b)/": "2 groups", "/(/": "missing", "/": "begins with $",
	} {
		if _, err := ParsePlace(text); err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("place %q: %v, want an error with %q", text, err, wrong)
		}
	}
	for object, wrong := range map[string]string{
		`[]`: "names and values", `{"a":"{ID}"}`: "{ID} is unknown", `{"a":{"b":["{arguments}"]}}`: "{arguments} is unknown", `{"a":"{x.y}"}`: "unknown",
	} {
		if _, err := ParseTemplate(json.RawMessage(object)); err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("arguments %s: %v, want an error with %q", object, err, wrong)
		}
	}
	if _, err := ParseTemplate(json.RawMessage(`{"a":"{\"x\":1} {} {1}"}`)); err != nil {
		t.Errorf("other braces are text: %v", err)
	}
	if _, err := ParsePattern("no such job"); err == nil {
		t.Error("a pattern without slashes is taken")
	}
}

// FuzzRead: no answer of a server stops the reading, and what is made of it is JSON.
func FuzzRead(f *testing.F) {
	f.Add(`{"jobId":"a","state":"queued","percent":1e999999999}`, "$.jobId", `{"a":"{id}","b":"{arguments.x}"}`, `{"x":{"y":1}}`)
	f.Add("job 7 started", `/job (\S+) started/`, `{"a":["{id}"]}`, `{}`)
	f.Add(`{"jobId":-1e-7}`, "$..*", `{"a":"x{id}"}`, `[]`)
	f.Fuzz(func(t *testing.T, text, path, object, arguments string) {
		r := rules(t)
		if p, err := ParsePlace(path); err == nil {
			r.ID = p
		}
		if made, err := ParseTemplate(json.RawMessage(object)); err == nil {
			r.Status.Arguments = made
		}
		structured := ""
		if json.Valid([]byte(text)) {
			structured = text
		}
		if !json.Valid([]byte(arguments)) {
			arguments = `{}`
		}
		result := says(text, structured)
		if s := r.Read(result, false); s.Phase == "" || s.RetryAfter < 0 {
			t.Errorf("the state is %+v", s)
		}
		m, err := r.Begin(result, json.RawMessage(`{"name":"start","arguments":`+arguments+`}`))
		if err != nil {
			return
		}
		kept, err := json.Marshal(m)
		if err != nil {
			t.Fatalf("the mark is no JSON: %v", err)
		}
		var again Mark
		if err := json.Unmarshal(kept, &again); err != nil || !json.Valid(r.Status.Params(again)) {
			t.Errorf("params %s of %s", r.Status.Params(again), kept)
		}
	})
}
