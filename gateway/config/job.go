package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"taskgate/shim"
	"taskgate/shim/job"
)

// JSON is a JSON value that is written as YAML: the names and values of arguments, or a status.
type JSON string

// Job says how the job of a tool is followed. A place is where an answer has a value: a JSONPath (RFC 9535) such as
// $.jobId, which is looked for in structuredContent and then in each text that is JSON, or a regular expression with
// one group between slashes, such as /job (\S+) started/, which is looked for in the texts.
type Job struct {
	// ID is the place of the job's id in the answer of the tool. The id is a text or a number.
	ID string `yaml:"id" required:"true"`

	// Status is the tool that tells how a job stands.
	Status JobStatus `yaml:"status"`

	// Running are the statuses of a job that goes on. A status that is in no list counts as one,
	// and the log says so.
	Running []JSON `yaml:"running"`

	// Done are the statuses of a job whose result is there. Statuses are compared as JSON values:
	// 1 is not "1".
	Done []JSON `yaml:"done"`

	// Failed are the statuses of a job that has failed. The answer with it is the result then, as
	// an error.
	Failed []JSON `yaml:"failed"`

	// Cancelled are the statuses of a job that was cancelled at the server.
	Cancelled []JSON `yaml:"cancelled"`

	// Lost is a regular expression between slashes, such as /no such job/, for what the server
	// says of a job that it no longer knows. The call fails then: the work may have been done. Any
	// other error is no answer, and the server is asked again.
	Lost string `yaml:"lost"`

	// Message is the place of a text in the status answer, which becomes the status message.
	Message string `yaml:"message"`

	// Progress is the place of a number in the status answer.
	Progress string `yaml:"progress"`

	// RetryAfter is the place of a number in the status answer: the seconds until the server wants
	// to be asked again, in place of interval.
	RetryAfter string `yaml:"retry_after"`

	// Result is the tool that fetches the result of a job. Without it the last answer of status is
	// the result.
	Result *JobCall `yaml:"result"`

	// Cancel is the tool that cancels a job: when its task is cancelled, or its timeout is over.
	Cancel *JobCall `yaml:"cancel"`

	// Interval is the pause before the first question, and between two questions at first.
	Interval time.Duration `yaml:"interval" min:"100ms"`

	// MaxInterval is what interval grows to.
	MaxInterval time.Duration `yaml:"max_interval" min:"100ms"`

	// Hide leaves the other tools of the job out of the clients' lists of tools. A client that
	// calls one all the same is answered.
	Hide Switch `yaml:"hide"`

	// Description replaces what the server says of the tool, which may tell the model to poll.
	Description string `yaml:"description"`

	// Append is added to what the server says of the tool, unless description replaces that. It has a default, which
	// says that the answer is the result.
	Append string `yaml:"append"`
}

// JobStatus is how a status tool is called, and where its answer has the status.
type JobStatus struct {
	// Tool is the name of the tool.
	Tool string `yaml:"tool" required:"true"`

	// Arguments are those of the call. {id} in a text is the id of the job, and {arguments.NAME} an
	// argument of the call that has started it. A text that is only that keeps the type of the value.
	Arguments JSON `yaml:"arguments"`

	// Value is the place of the status.
	Value string `yaml:"value" required:"true"`
}

// JobCall is how a job tool is called.
type JobCall struct {
	// Tool is the name of the tool.
	Tool string `yaml:"tool" required:"true"`

	// Arguments are as those of status.
	Arguments JSON `yaml:"arguments"`
}

// appended is the default of Job.Append.
const appended = "The answer to this call is the finished result, however long the work takes. No job id is returned: do not ask for a status, and call no other tool to fetch the result."

// seed gives a job its defaults.
func (j *Job) seed(any) {
	*j = Job{Interval: 2 * time.Second, MaxInterval: 30 * time.Second, Hide: Off, Append: appended}
}

// Rules are the job as it is followed. Making them takes a while. They are nil for nil.
func (j *Job) Rules() *job.Rules {
	if j == nil {
		return nil
	}
	return jobReader{new(problems), "", j}.makeRules()
}

// JobOf is the job that a tool starts, by its name and what the server says of it; nil for none.
func (u *Upstream) JobOf(name string, says shim.Hints) *Job {
	if i := u.RuleOf(name, says); i >= 0 {
		return u.Tools[i].Job
	}
	return nil
}

// Tools are the names of the other tools of the job.
func (j *Job) Tools() []string {
	names := []string{j.Status.Tool}
	for _, c := range []*JobCall{j.Result, j.Cancel} {
		if c != nil {
			names = append(names, c.Tool)
		}
	}
	return names
}

// StartsJobs reports whether a tool of the upstream starts jobs.
func (u *Upstream) StartsJobs() bool {
	return slices.ContainsFunc(u.Tools, func(r Rule) bool { return r.Job != nil })
}

// HidesTool reports whether a tool is left out of lists because it only serves jobs.
func (u *Upstream) HidesTool(name string) bool {
	return slices.ContainsFunc(u.Tools, func(r Rule) bool {
		return r.Job != nil && r.Job.Hide == On && slices.Contains(r.Job.Tools(), name)
	})
}

// jobReader makes the rules of a job, and notes its mistakes. at is the path of the job.
type jobReader struct {
	p  *problems
	at string
	j  *Job
}

// checkJobs checks the jobs of an upstream.
func checkJobs(p *problems, at string, u *Upstream) {
	for i := range u.Tools {
		if j := u.Tools[i].Job; j != nil {
			if u.Tools[i].Match.UsesHints() {
				p.addKey(fmt.Sprintf("%s.tools[%d].job", at, i), "not beside a match by annotations: name the tool that starts the job")
			}
			r := jobReader{p, fmt.Sprintf("%s.tools[%d].job", at, i), j}
			p.checkFields(r.at, j)
			r.makeRules()
			r.checkTools(u)
		}
	}
}

// checkTools checks that the other tools of the job start none themselves, and that it can end.
func (r jobReader) checkTools(u *Upstream) {
	p, at, j := r.p, r.at, r.j
	places := []string{"status", "result", "cancel"}
	if j.Result == nil {
		places = []string{"status", "cancel"}
	}
	for i, name := range j.Tools() {
		if name != "" && u.JobOf(name, shim.Hints{}) != nil {
			p.add(at+"."+places[i]+".tool", "this tool starts a job itself, by the entry of tools that matches it")
		}
	}
	if len(j.Done) == 0 && len(j.Failed) == 0 {
		p.addFor([]string{at + ".done", at}, "without done the job would never end")
	}
	if j.MaxInterval < j.Interval {
		p.addFor([]string{at + ".max_interval", at + ".interval", at}, "max_interval must be at least interval")
	}
}

// makeRules makes the rules of the job.
func (r jobReader) makeRules() *job.Rules {
	p, at, j := r.p, r.at, r.j
	place := func(key, text string) job.Place {
		made, err := job.ParsePlace(text)
		if err != nil {
			p.add(at+"."+key, "%s", err)
		}
		return made
	}
	call := func(key, tool string, arguments JSON) job.Call {
		made, err := job.ParseTemplate(json.RawMessage(arguments))
		switch {
		case err != nil:
			p.addFor([]string{at + "." + key + ".arguments", at + "." + key}, "%s", err)
		case tool != "" && !made.UsesID():
			p.addFor([]string{at + "." + key + ".arguments", at + "." + key}, "the arguments need {id}, or the server is not told which job is meant")
		}
		return job.Call{Tool: tool, Arguments: made}
	}
	made := &job.Rules{
		ID: place("id", j.ID), Value: place("status.value", j.Status.Value), Message: place("message", j.Message),
		Progress: place("progress", j.Progress), RetryAfter: place("retry_after", j.RetryAfter),
		Status: call("status", j.Status.Tool, j.Status.Arguments), Interval: j.Interval, MaxInterval: j.MaxInterval,
	}
	for key, one := range map[string]struct {
		from *JobCall
		to   **job.Call
	}{"result": {j.Result, &made.Result}, "cancel": {j.Cancel, &made.Cancel}} {
		if one.from != nil {
			p.checkFields(at+"."+key, one.from)
			called := call(key, one.from.Tool, one.from.Arguments)
			*one.to = &called
		}
	}
	if j.Lost != "" {
		lost, err := job.ParsePattern(j.Lost)
		if err != nil {
			p.add(at+".lost", "%s", err)
		}
		made.Lost = lost
	}
	r.readStatuses(made)
	return made
}

// readStatuses reads the lists of statuses, each of which is in one list.
func (r jobReader) readStatuses(made *job.Rules) {
	p, j := r.p, r.j
	seen := map[job.Value]string{}
	for _, list := range []struct {
		key  string
		from []JSON
		to   *[]job.Value
	}{{"running", j.Running, &made.Running}, {"done", j.Done, &made.Done}, {"failed", j.Failed, &made.Failed}, {"cancelled", j.Cancelled, &made.Cancelled}} {
		for i, text := range list.from {
			at := fmt.Sprintf("%s.%s[%d]", r.at, list.key, i)
			value, err := job.ParseValue(json.RawMessage(text))
			if err != nil {
				p.add(at, "no status")
				continue
			}
			if before, twice := seen[value]; twice {
				p.add(at, "this status is already in %s", before)
			}
			seen[value] = list.key
			*list.to = append(*list.to, value)
		}
	}
}

// decodeJSON decodes a node of any kind as JSON. Texts may have variables.
func (d *decoder) decodeJSON(n *yaml.Node, path string) JSON {
	n = resolveAlias(n)
	if d.values++; d.values > mostValues { // an alias may stand for itself
		d.addAt(n, path, "too many values")
		return "null"
	}
	switch n.Kind {
	case yaml.MappingNode:
		var members []string
		entries := d.readEntries(n)
		for i := 0; i+1 < len(n.Content); i += 2 { // in the order of the file; what is merged comes last
			members = d.decodeMember(members, entries, n.Content[i].Value, path)
		}
		for _, name := range slices.Sorted(maps.Keys(entries)) {
			members = d.decodeMember(members, entries, name, path)
		}
		return JSON("{" + strings.Join(members, ",") + "}")
	case yaml.SequenceNode:
		var elements []string
		for i, entry := range n.Content {
			elements = append(elements, string(d.decodeJSON(entry, path+"["+strconv.Itoa(i)+"]")))
		}
		return JSON("[" + strings.Join(elements, ",") + "]")
	}
	switch n.Tag {
	case "!!null":
		return "null"
	case "!!bool":
		return JSON(strings.ToLower(n.Value))
	case "!!int", "!!float":
		if number.MatchString(n.Value) {
			return JSON(n.Value)
		}
		d.addAt(n, path, strconv.Quote(clipText(n.Value))+" is no number of JSON")
		return "null"
	}
	var text string
	d.decodeScalar(n, path, reflect.ValueOf(&text).Elem())
	spelt, _ := json.Marshal(text) // a text can always be written
	return JSON(spelt)
}

// mostValues bounds the values in all arguments and statuses of a file.
const mostValues = 10_000

// number is how JSON spells one.
var number = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)

// decodeMember adds a member to an object, and takes it out of the entries.
func (d *decoder) decodeMember(members []string, entries map[string]place, name, path string) []string {
	e, ok := entries[name]
	if !ok {
		return members
	}
	delete(entries, name)
	at := joinKey(path, name)
	d.at[at] = e
	spelt, _ := json.Marshal(name)
	return append(members, string(spelt)+":"+string(d.decodeJSON(e.value, at)))
}
