"""Where agents compute: the same tasks in this process, and on Flower.

Reading order: `messages` (what is said), `agreement` and `site` (what an agent holds), `opening` and `tasks` (what it
answers), `in_process` (the bare engine), `conversation` and `audit` (whom to ask, what to believe, what is written down),
`workshop`, `remote_gradients` and `remote_trials` (what the server can have agents do), `gathering`, `weighing`, `judging`
and `joining` (its chapters), `coordinator` (its story), and `flower` (the same on Flower).
"""
