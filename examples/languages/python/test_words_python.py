import unittest

from words_python import words_python


class Words(unittest.TestCase):
    def test_the_target_scores_highest(self):
        self.assertEqual(words_python("one two three", target=3), 0)
        self.assertEqual(words_python("one two", target=3), -1)

    def test_no_word_has_no_score(self):
        self.assertIsNone(words_python(" \n"))


if __name__ == "__main__":
    unittest.main()
